"""A described cluster: nodes, links and compute speeds. The simulator and the emulation use the same description.

cluster.py has the description and the durations of steps, reading.py reads it from YAML, topology.py makes it a graph
with routes, transfers.py moves tensors on a simulated clock, over channels that flows share.
"""
