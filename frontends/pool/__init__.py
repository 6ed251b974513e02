"""A pool: `serve` trains several jobs of several users at the same time, each on workers of its own."""
