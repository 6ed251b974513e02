"""What workers and servers both need to know of a captured model: its variables, momentum, and division over shards."""
