"""Training on a simulated clock: the policy, the rules, the applier and the step of `nfdt run`, with real gradients.

Only the clock, the links and the workers' speeds are simulated. fleet.py is the workers; session.py is one job, driven
by the same commands as a worker that hosts its server; member.py is the process it runs in, engine.py starts that
process.
"""
