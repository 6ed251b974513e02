"""TensorFlow 1 sessions in a replicated script: placeholders, `Session.run`, the optimizers of `tf.compat.v1`.

gradients.py   passes a graph's gradients of variables through Python, for an engine's exchange
plans.py       finds in the graph what a run reaches: gradients, iterators, changed variables
feeds.py       a call of `Session.run`, and which arrays hold the batch's rows
values.py      reads and writes a session's variables without changing its graph, and agrees on what the script reads
patches.py     the patches of TensorFlow, common to both engines
"""
