"""TensorFlow 1 sessions in a replica script: graphs with placeholders, `Session.run`, the optimizers of `tf.compat.v1`.

gradients.py   where gradients of variables are taken in a graph, they pass through Python: an engine's exchange
plans.py       what a run reaches: such gradients, iterators, variables that it changes; found in the graph
feeds.py       which arrays of a run are the batch's rows
call.py        a run as it was asked for
values.py      a session's variables, read and written without a change of its graph
patches.py     what is replaced in TensorFlow, under either engine
"""
