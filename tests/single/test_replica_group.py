"""The interface of a replicated script's process group, and the collectives on arrays: one contract for all groups."""

import concurrent.futures
import contextlib
import socket
import threading

import numpy as np
import pytest

from fdt.errors import WorkerError
from fdt.process_group import EACH_BYTES
from fdt.process_group.peer import PeerGroup
from fdt.process_group.root import RootGroup
from fdt.process_group.streams import INLINE_BYTES, MessageStream
from replica.exchange import GroupedExchange, arrays_of_rank_0
from replica.placement import PARTIAL, Shard
from tests.in_process_comm import on_ranks
from tests.single.thread_groups import MemoryGroup

KINDS = ["memory", "one host", "serving", "two hosts"]
WAIT_S = 60


class Door:
    """Where the last rank comes in as from another host."""

    def __init__(self, *arrived):
        self._arrived = list(arrived)

    def take_streams(self):
        arrived, self._arrived = self._arrived, []
        return arrived

    def close(self):
        pass


def in_threads(groups, work):
    """`work(group)` of every rank. Raises what the lowest rank raised."""
    results = [None] * len(groups)

    def run(rank):
        try:
            results[rank] = work(groups[rank])
        except Exception as error:
            results[rank] = error
            groups[rank].close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(groups))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    for error in (each for each in results if isinstance(each, Exception)):
        raise error
    return results


def served(push):
    push.answer(2 * push.vector, {"rank": push.rank, **push.header})


@contextlib.contextmanager
def made(kind, directory, size):
    """The sides of one group; the last rank of "two hosts" shares no files with the others."""
    ours, theirs = socket.socketpair()
    far = kind == "two hosts"
    host = RootGroup(directory, size, lambda: None, Door((size - 1, MessageStream(ours, remote=True))) if far else None)
    groups = [host, *(PeerGroup(directory, rank, size, alone=lambda: None) for rank in range(1, size - far))]
    if far:
        groups.append(
            PeerGroup(directory / "elsewhere", size - 1, size, MessageStream(theirs, remote=True), lambda: None)
        )
    host.serve_by(served if kind == "serving" else None)
    yield groups
    for each in (*reversed(groups), ours, theirs):
        each.close()


@pytest.fixture(params=KINDS)
def run(request, tmp_path):
    """`run(size, work)`: what `work(group)` returns on each rank of a group."""

    def ran(size, work):
        if request.param == "memory":
            return on_ranks(size, lambda comm: work(MemoryGroup(comm.rank, size, comm)))
        with made(request.param, tmp_path, size) as groups:
            return in_threads(groups, work)

    return ran


SIZES = [1, INLINE_BYTES // 8 + 1, EACH_BYTES // 8 + 1]


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("size", [2, 3])
def test_all_reduce_adds_in_the_order_of_ranks(run, size, count):
    vectors = [np.random.default_rng(rank).normal(size=count) for rank in range(size)]
    expected = sum(vectors[1:], vectors[0])
    for total in run(size, lambda group: group.all_reduce(vectors[group.rank], "v")):
        np.testing.assert_array_equal(total, expected)


@pytest.mark.parametrize("count", [0, *SIZES])
@pytest.mark.parametrize("size", [2, 3])
def test_all_gather_keeps_every_bit_and_sends_its_own_part_alone(run, size, count):
    counts = [count * rank for rank in range(size)]  # none of rank 0's
    vectors = [np.random.default_rng(rank).integers(0, 2**63, n).view(np.float64) for rank, n in enumerate(counts)]

    def work(group):
        whole = group.all_gather(vectors[group.rank], counts, "v")
        return whole.view(np.int64), group.sent_bytes

    for rank, (whole, sent) in enumerate(run(size, work)):
        np.testing.assert_array_equal(whole, np.concatenate(vectors).view(np.int64))
        assert sent == counts[rank] * 8


def test_a_rank_ahead_writes_over_nothing_that_another_has_to_read(run):
    count = INLINE_BYTES  # numbers: a mapped file holds them

    def work(group):
        found = []
        for n in range(20):
            mine = np.full(count, float(10 * n + group.rank))
            found.append(np.unique(group.all_gather(mine, [count] * 3, "gathered")).tolist())
            found.append(np.unique(group.all_reduce(mine, "added")).tolist())
            found.append(np.unique(group.all_reduce(np.tile(mine, 4), "added by one")).tolist())
        return found

    expected = [each for n in range(20) for each in ([10.0 * n + r for r in range(3)], *[[30.0 * n + 3]] * 2)]
    assert run(3, work) == [expected] * 3


def test_broadcast_gives_rank_0s_value_and_a_barrier_waits(run):
    come = []

    def work(group):
        come.append(group.rank)
        group.barrier("all")
        return sorted(come), group.broadcast({"rank": group.rank}, "value")

    assert run(3, work) == [([0, 1, 2], {"rank": 0})] * 3


@pytest.mark.parametrize("kind", ["serving", "two hosts"])
@pytest.mark.parametrize("count", [3, INLINE_BYTES])
def test_a_push_is_answered_by_rank_0_alone(tmp_path, kind, count):
    def work(group):
        group.serve_by(served)
        answers = [group.push_pull(np.full(count, n, np.float32), {"n": n}) for n in (1, 2)]
        group.barrier("end")
        assert group.pushes() == []
        return [(np.unique(vector).tolist(), dict(header)) for vector, header in answers]

    with made(kind, tmp_path, 3) as groups:
        found = in_threads(groups, work)
    assert found == [[([2.0 * n], {"rank": rank, "n": n}) for n in (1, 2)] for rank in range(3)]


@pytest.mark.parametrize(
    "other",
    [
        lambda group, count: group.all_reduce(np.ones(count), "v"),
        lambda group, count: group.all_gather(np.ones(1), [count - 1, 1], "v"),
        lambda group, count: group.push_pull(np.ones(1), {}),
    ],
)
@pytest.mark.parametrize("count", [4, INLINE_BYTES])
def test_a_rank_at_another_collective_is_an_error(tmp_path, other, count):
    half = np.ones(count // 2)

    def work(group):
        if group.rank == 0:
            return group.all_gather(half, [len(half), len(half)], "v")
        with contextlib.suppress(Exception):
            other(group, count)
        return None

    with (
        made("one host", tmp_path, 2) as groups,
        pytest.raises(WorkerError, match="collectives in the same order"),
    ):
        in_threads(groups, work)


def test_a_rank_that_has_ended_leaves_no_part(tmp_path):
    """Asynchronous ranks may end before rank 0."""

    def work(group):
        if group.rank:
            return group.end({"how": "exit code 0"})
        total = group.all_reduce(np.ones(2), "v").tolist()
        none_of_its = group.all_gather(np.ones(2), [2, 0], "v").tolist()
        with pytest.raises(WorkerError, match="a rank has ended"):
            group.all_gather(np.ones(2), [2, 1], "v")
        return total, none_of_its

    with made("serving", tmp_path, 2) as groups:
        assert in_threads(groups, work)[0] == ([1.0, 1.0], [1.0, 1.0])


# -- collectives on arrays ---------------------------------------------------------------------------------------------
ROWS = (1, 0, 2)


def arrays_of(rank, scale):
    """Partials and Shards of several dtypes, `scale` columns of each."""
    part = np.arange(3 * scale).reshape(3, scale) % 1000
    low = sum(ROWS[:rank])
    mine = part[low : low + ROWS[rank]]
    return [
        (np.full(scale, rank + 0.5, np.float32), PARTIAL),
        (mine.astype(np.float64), Shard(0, ROWS)),
        (np.full((2, scale), rank), PARTIAL),
        (np.array(rank > 1), PARTIAL),
        ((mine.T % 2).astype(bool), Shard(1, ROWS)),
        (mine.astype(np.float16), Shard(0, ROWS)),
    ]


@pytest.mark.parametrize(("scale", "collectives"), [(5, 1), (INLINE_BYTES, 4)])
def test_what_is_small_takes_one_collective_and_what_is_large_one_of_each_kind(scale, collectives):
    def work(comm):
        group = MemoryGroup(comm.rank, 3, comm)
        arrays, placements = zip(*arrays_of(comm.rank, scale), strict=True)
        found = GroupedExchange(group).replicated("v", arrays, placements)
        assert [f.dtype for f in found] == [a.dtype for a in arrays]
        assert len(group.names) == collectives
        return found

    part = np.arange(3 * scale).reshape(3, scale) % 1000
    halves = part.astype(np.float16)
    expected = [np.full(scale, 4.5), part, np.full((2, scale), 3), True, part.T % 2 == 1, halves]
    for found in on_ranks(3, work):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.filterwarnings("error")  # a script of mixed precision, which skips such steps, ended with -W error
def test_a_sum_that_overflows_or_is_not_a_number_warns_of_nothing():
    def work(comm):
        arrays = np.array([60000.0, 1.0], np.float16), np.array([-np.inf if comm.rank else np.inf], np.float32)
        return GroupedExchange(MemoryGroup(comm.rank, 2, comm)).replicated("v", arrays, [PARTIAL, PARTIAL])

    for half, single in on_ranks(2, work):
        assert half.tolist() == [np.inf, 2.0] and np.isnan(single[0])


def test_rank_0s_arrays_go_to_ranks_that_have_other_ones():
    held = [
        {"a": [np.ones((2, 1), np.float32)], "b": [np.array(7), np.zeros(0)]},
        {"a": [], "b": [np.array(1.5)], "c": [np.ones(9)]},
    ]

    def work(comm):
        group = MemoryGroup(comm.rank, 2, comm)
        found = arrays_of_rank_0(group, held[comm.rank], "v")
        assert group.sent_bytes == (16 if comm.rank == 0 else 0)
        return {key: [(a.dtype.name, a.tolist()) for a in arrays] for key, arrays in found.items()}

    expected = {"a": [("float32", [[1.0], [1.0]])], "b": [("int64", 7), ("float64", [])]}
    assert on_ranks(2, work) == [expected] * 2


def test_a_collective_waits_for_those_that_an_ended_graph_has_started(monkeypatch):
    done, go = [], threading.Event()

    class Group(MemoryGroup):
        def all_reduce(self, vector, name):
            if name == "started":
                go.wait()
            done.append(name)
            return vector

    def wait(futures):
        go.set()
        return concurrent.futures.wait(futures)

    monkeypatch.setattr("replica.exchange.wait", wait)
    exchange = GroupedExchange(Group(0, 2))
    exchange.start("started", [np.ones(2)], [PARTIAL])
    exchange.replicated("next", [np.ones(2)], [PARTIAL])
    go.set()
    assert done == ["started", "next"]


def test_an_error_of_a_started_collective_reaches_what_waits_for_it():
    class Group(MemoryGroup):
        def all_reduce(self, vector, name):
            raise WorkerError("rank 1 was lost")

    exchange = GroupedExchange(Group(0, 2))
    with pytest.raises(WorkerError, match="rank 1 was lost"):
        exchange.start("started", [np.ones(2)], [PARTIAL]).result()
    assert isinstance(exchange.failure, WorkerError)
