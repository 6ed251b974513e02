"""A described cluster: nodes, links and compute speeds. The simulator and the emulation use the same description.

cluster.py has the description, reading.py reads it from YAML, topology.py makes it a graph with routes, transfers.py
moves tensors on a simulated clock, contended.py computes flows that share channels, fair_sharing.py divides a channel,
pace.py computes the duration of steps.
"""
