"""Environment variables that the engine sets for the simulation's process."""

CLUSTER_VARIABLE = "NFDT_CLUSTER"  # path of the cluster file; not set: equal nodes
WORKERS_VARIABLE = "NFDT_SIMULATED_WORKERS"
