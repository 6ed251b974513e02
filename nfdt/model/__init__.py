"""Properties of a captured model that workers and servers share: variables, momentum, and division over shards."""
