"""Training on a simulated clock: scheduler, algorithms, applier and step of `nfdt run`, with real gradients.

Only the clock, the links and the workers' speeds are simulated. workers.py has the workers. session.py is one job,
driven by the same commands as a worker that hosts its server. process.py is its process;
nfdt/engine starts it.
"""
