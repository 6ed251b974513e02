"""The contract of every Comm, run by every rank: `comm_contract.py horovod mpi` under a launcher."""

import os
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parents[2]))


def adds(comm):
    total = comm.sum([tf.fill([3], 1.0 + comm.rank), tf.constant([[comm.rank]], tf.int64)], "adds")
    np.testing.assert_array_equal(total[0], np.full(3, sum(range(1, comm.size + 1))))
    np.testing.assert_array_equal(total[1], [[sum(range(comm.size))]])


def adds_in_graphs_of_any_length(comm):
    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def add(x):
        return comm.sum([x, tf.reduce_sum(x, axis=0)], "graph")

    for rows in (1, 5, 2):
        whole, summed = add(tf.ones([rows, 2]))
        np.testing.assert_array_equal(whole, np.full([rows, 2], comm.size))
        np.testing.assert_array_equal(summed, np.full(2, rows * comm.size))


def scatters_sums_and_gathers(comm):
    """Part by part the sum, eagerly and in a graph; gathered again, the whole of it. One vector has over 1 MB."""
    n = comm.size

    def both(*vectors):
        parts = comm.reduce_scatter(vectors, "parts")
        return [*parts, *comm.all_gather(parts, "whole")]

    base = [np.arange(3.0 * n, dtype="float32"), np.arange(2**19 * n, dtype="float32") % 64, np.arange(n)]
    wholes = [vector * n * (n + 1) / 2 for vector in base]
    for run in [both] if getattr(comm, "eager_only", False) else [both, tf.function(both)]:
        found = run(*(tf.constant(vector * (comm.rank + 1)) for vector in base))
        for part, gathered, whole in zip(found[:3], found[3:], wholes, strict=True):
            np.testing.assert_array_equal(part, np.split(whole, n)[comm.rank])
            np.testing.assert_array_equal(gathered, whole)
            assert part.shape == [len(whole) // n] and gathered.shape == whole.shape


def keeps_dtypes(comm):
    kinds = [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64]
    total = comm.sum([tf.cast([1, 2], kind) for kind in kinds], "dtypes")
    assert [t.dtype for t in total] == kinds
    for t in total:
        np.testing.assert_array_equal(tf.cast(t, tf.float32), [comm.size, 2 * comm.size])
    parts = comm.reduce_scatter([tf.ones(comm.size, kind) for kind in kinds], "dtypes of parts")
    for t, kind in zip([*parts, *comm.all_gather(parts, "gathered dtypes")], [*kinds, *kinds], strict=True):
        assert t.dtype == kind and np.all(tf.cast(t, tf.float32) == comm.size)


def adds_halves_in_graphs(comm):
    """Of lengths that the number of ranks does not divide, several tensors in one exchange."""
    for kind in (tf.float16, tf.bfloat16):

        @tf.function(input_signature=[tf.TensorSpec([None, 3], kind)])
        def add(x):
            return comm.sum([x, x[0] * 2, tf.constant(0.5, x.dtype)], "halves")

        for rows in (1, 5):
            mine = np.arange(3.0 * rows).reshape(rows, 3) + comm.rank
            want = comm.size * np.arange(3.0 * rows).reshape(rows, 3) + sum(range(comm.size))
            whole, first, half = add(tf.cast(mine, kind))
            assert {t.dtype for t in (whole, first, half)} == {kind}
            np.testing.assert_array_equal(tf.cast(whole, tf.float64), want)
            np.testing.assert_array_equal(tf.cast(first, tf.float64), 2 * want[0])
            assert float(half) == 0.5 * comm.size


def keeps_order_where_no_data_orders(comm):
    """Two exchanges of one graph that know nothing of one another, in a loop: they must not be swapped."""

    @tf.function
    def two(n):
        total = tf.zeros([2])
        for _ in tf.range(n):
            a = comm.sum([tf.fill([2], 1.0)], "first")[0]
            b = comm.sum([tf.fill([3], 10.0)], "second")[0]
            total += a + b[:2]
        return total

    np.testing.assert_array_equal(two(20), np.full(2, 220.0 * comm.size))


def passes_what_is_not_finite_on(comm):
    value = tf.constant([np.inf if comm.rank == 0 else 1.0, 2.0])
    np.testing.assert_array_equal(comm.sum([value], "inf")[0], [np.inf, 2.0 * comm.size])


def pauses_and_resumes(comm):
    """A graph traced before a pause exchanges after it; a second resume has no effect. Horovod's thread ends."""

    @tf.function
    def add():
        return comm.sum([tf.fill([2], 1.0 + comm.rank)], "paused")[0]

    want = np.full(2, sum(range(comm.size + 1)))
    for _ in range(3):
        np.testing.assert_array_equal(add(), want)
        running = threads()
        comm.pause()
        deadline = time.monotonic() + 60
        while threads() > running - (type(comm).__name__ == "HorovodComm"):  # a joined thread is listed a moment longer
            assert time.monotonic() < deadline, "the thread goes on"
        comm.resume()
        comm.resume()
    np.testing.assert_array_equal(add(), want)


def threads():
    return len(os.listdir("/proc/self/task"))


def multicasts(comm):
    """Beside Horovod by mpi4py; every sender in turn, to all and to some."""
    from hfdt.collectives import multicasting

    air = multicasting(comm)
    teams = [team for team in [tuple(range(comm.size)), (0, comm.size - 1)] if comm.rank in team]
    for team in teams:
        for root in team:
            mine = np.full(5, comm.rank + 1.5, np.float32)
            got = air.multicast(mine, root, team)
            np.testing.assert_array_equal(got, np.full(5, root + 1.5, np.float32))
            np.testing.assert_array_equal(mine, np.full(5, comm.rank + 1.5, np.float32))
    assert air.sent_bytes == len(teams) * 5 * 4


CONTRACT = [
    adds,
    adds_in_graphs_of_any_length,
    scatters_sums_and_gathers,
    keeps_dtypes,
    adds_halves_in_graphs,
    keeps_order_where_no_data_orders,
    passes_what_is_not_finite_on,
]
AMONG_MORE = [multicasts, pauses_and_resumes]

if __name__ == "__main__":
    from hfdt.collectives import choose, initialized_mpi

    rank, size = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
    with initialized_mpi("auto", size):
        for comm in [choose(name, rank, size)[0] for name in sys.argv[1:]]:
            for check in [*CONTRACT, *AMONG_MORE]:
                check(comm)
