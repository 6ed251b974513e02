"""The hand-written counterpart under ParameterServerStrategy, on a tf.Module (Keras 3 models fail under it).

TF_CONFIG makes it the chief, a worker or a server. A scheduled step is one batch: pull, gradient, push; the server's
variables change with each push, without locks.
"""

import json
import os
import sys

import workload  # isort: skip
import tensorflow as tf

args = workload.arguments()
clock = workload.Clock(args.rows)
clock.mark("imported")
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer="grpc")
if resolver.task_type in ("worker", "ps"):
    served = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc", start=True
    )
    served.join()
    sys.exit(0)

import pipeline  # noqa: E402
from network import Network, momentum  # noqa: E402

workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    network = Network(args.model)


def all_batches() -> tf.data.Dataset:
    """All rows on every worker, each in an order of its own: the way of TensorFlow's guide."""
    x, y = workload.data(args.rows)
    return pipeline.batches(x, y, args.batch).repeat()


@tf.function
def step(iterator: tf.data.Iterator) -> tf.Tensor:
    x, y = next(iterator)
    with tf.GradientTape() as tape:
        loss, accuracy = network.loss(x, y)
    gradients = tape.gradient(loss, network.weights)
    for gradient, weight, velocity in zip(gradients, network.weights, network.velocities, strict=True):
        momentum(weight, velocity, gradient, args.rate, args.momentum)
    return tf.stack([loss, accuracy])


batches = iter(coordinator.create_per_worker_dataset(all_batches))
clock.mark("fit")
for _ in range(args.epochs):
    results = [coordinator.schedule(step, args=(batches,)) for _ in range(args.rows // args.batch)]
    coordinator.join()
    sample = coordinator.fetch(results[::10])  # all of them would take a noticeable part of the epoch
    clock.epoch(*map(float, tf.reduce_mean(sample, axis=0)))
clock.mark("fitted")
clock.report(workers=workers)
