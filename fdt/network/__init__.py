"""A cluster described: nodes, links, compute speeds. One description for the simulator and for emulation.

cluster.py is what a description says, reading.py reads it from YAML, topology.py makes it a graph with routes,
sharing.py says who gets how much of a link, transfers.py lets tensors travel on a simulated clock, pace.py lets nodes
compute.
"""
