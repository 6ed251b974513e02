"""The worker process: it pulls weights, computes gradients and pushes them."""
