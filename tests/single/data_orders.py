"""The batches and their order in a process that rebuilds a pipeline, compared by test_data_graph.py."""

from fdt.data import first_batch_checksum
from fdt.data.epochs import EpochBoundary
from fdt.data.graph import GraphSource


def orders(data, blobs):
    source = GraphSource(data, blobs, steps=0, first=0, boundary=EpochBoundary.SHORT)
    return [first_batch_checksum(source), [_labels(source, epoch) for epoch in (0, 1)]]


def _labels(source, epoch):
    return [element[1].numpy().tolist() for element, _ in source.slices(epoch, 0, 1)]
