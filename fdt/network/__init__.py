"""A cluster described: nodes, links, compute speeds. One description for the simulator and for emulation.

cluster.py is what a description says, reading.py reads it from YAML, topology.py makes it a graph with routes,
transfers.py lets tensors travel on a simulated clock, contended.py those that must share, sharing.py says who gets how
much of a link, pace.py lets nodes compute.
"""
