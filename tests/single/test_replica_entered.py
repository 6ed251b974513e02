"""The values that enter a replicated script (replica/entered.py): all ranks must have read the same."""

import numpy as np
import pytest
import tensorflow as tf

from fdt.errors import WorkerError
from replica.entered import EnteredValues
from replica.exchange import GroupedExchange
from tests.in_process_comm import on_ranks
from tests.single.thread_groups import MemoryGroup

X = np.random.default_rng(0).normal(size=(600, 4)).astype("float32")


def compared(make, size=2):
    """Let each of the ranks, which are threads, add `make(rank)` and compare; return 1 for each that does not fail."""

    def work(comm):
        values = EnteredValues(GroupedExchange(MemoryGroup(comm.rank, size, comm)))
        for tensor in make(comm.rank):
            values.add(tf.constant(tensor))
        values.compare(1)
        return 1

    return on_ranks(size, work)


@pytest.mark.parametrize(
    "make",
    [
        lambda rank: [X[rank * 10 :], X[: -1 - rank]],
        lambda rank: [np.arange(8) + rank],
        lambda rank: [np.full([4], np.nan), [True, rank == 0]],
        lambda rank: [X] * (1 + rank),
    ],
    ids=["floats", "integers", "flags", "more"],
)
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_with_other_data_end_with_the_line(make, size):
    with pytest.raises(WorkerError, match=r"enter the script at .*, as each takes .* until step 1 differ by"):
        compared(make, size)


@pytest.mark.parametrize(
    "make",
    [
        lambda rank: [X, X[:3]],
        lambda rank: [X * (1 + 1e-7 * rank)],  # another processor's rounding
        lambda rank: [np.full([4], np.nan), np.array([np.inf, 1e308, 1e308]), np.zeros([0, 3]), ["text"], [1j]],
        lambda rank: [],
    ],
    ids=["same", "rounded", "not_numbers", "none"],
)
def test_ranks_with_the_same_data_go_on(make):
    assert compared(make) == [1, 1]
