"""What the engine passes on to its process by environment."""

CLUSTER_VARIABLE = "NFDT_CLUSTER"  # path of the description; not set: equal nodes
WORKERS_VARIABLE = "NFDT_SIMULATED_WORKERS"
