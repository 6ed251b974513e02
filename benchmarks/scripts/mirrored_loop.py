"""The hand-written counterpart under MultiWorkerMirroredStrategy, on a tf.Module (Keras 3 models fail under it).

It is started once per worker with TF_CONFIG. One batch_reduce_to sums the gradients, as in Keras 2's optimizers.
"""

import json
import os

import workload  # isort: skip
import tensorflow as tf

args = workload.arguments()
clock = workload.Clock(args.rows)
clock.mark("imported")
strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else of TensorFlow
import pipeline  # noqa: E402
from network import Network, momentum  # noqa: E402

rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
size = strategy.num_replicas_in_sync
with strategy.scope():
    network = Network(args.model)
    totals = tf.Variable(tf.zeros(2), trainable=False, synchronization=tf.VariableSynchronization.ON_READ,
                         aggregation=tf.VariableAggregation.SUM)  # fmt: skip


def my_batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
    x, y = workload.data(args.rows)
    x, y = x[context.input_pipeline_id :: size], y[context.input_pipeline_id :: size]
    return pipeline.batches(x, y, context.get_per_replica_batch_size(args.batch))


batches = strategy.distribute_datasets_from_function(my_batches)


def update(strategy: tf.distribute.StrategyExtended, gradients: list[tf.Tensor]) -> None:
    """Momentum, across replicas."""
    weights = network.weights
    reduced = strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.MEAN, list(zip(gradients, weights, strict=True)))
    for gradient, weight, velocity in zip(reduced, weights, network.velocities, strict=True):
        strategy.extended.update(weight, momentum, args=(velocity, gradient, args.rate, args.momentum))


def replica_step(x: tf.Tensor, y: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
        loss, accuracy = network.loss(x, y)
    gradients = tape.gradient(loss, network.weights)
    tf.distribute.get_replica_context().merge_call(update, args=(gradients,))
    totals.assign_add(tf.stack([loss, accuracy]))


@tf.function
def step(iterator: tf.distribute.DistributedIterator) -> None:
    strategy.run(replica_step, args=next(iterator))


clock.mark("fit")
steps = args.rows // args.batch
for _ in range(args.epochs):
    totals.assign(tf.zeros(2))
    iterator = iter(batches)
    for _ in range(steps):
        step(iterator)
    result = totals.read_value() / (steps * size)
    if rank == 0:
        clock.epoch(*map(float, result))
clock.mark("fitted")
if rank == 0:
    clock.report(workers=size)
