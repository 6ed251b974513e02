"""The batches and their order in a process that rebuilds a pipeline, and those of an undivided `fit`."""

import tensorflow as tf

from fdt.data import first_batch_checksum
from fdt.data.epochs import EpochBoundary
from fdt.data.graph import GraphSource


def orders(data, blobs):
    source = GraphSource(data, blobs, steps=0, first=0, boundary=EpochBoundary.SHORT)
    return [first_batch_checksum(source), [_labels(source, epoch) for epoch in (0, 1)]]


def _labels(source, epoch):
    return [element[1].numpy().tolist() for element, _ in source.slices(epoch, 0, 1)]


def order_of_fit(library, dataset, steps):
    """The first labels of each of three epochs of an undivided `fit`."""
    seen = []

    class Seen(library.Model):
        def train_step(self, batch):
            tf.py_function(lambda y: seen.append(y.numpy().tolist()), [batch[1]], [])
            return {"loss": tf.constant(0.0)}

    model = Seen()
    model.compile("sgd", "mse")
    model.fit(dataset, epochs=3, steps_per_epoch=steps, shuffle=False, verbose=0)
    batches = len(seen) // 3
    return [seen[epoch * batches : (epoch + 1) * batches] for epoch in range(3)]
