"""The process group of a replicated script: sums, rank 0's values, and errors that name ranks at other exchanges."""

import errno
import os
import socket
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from ml_dtypes import bfloat16

from fdt.errors import UserError, WorkerError
from fdt.process_group import EACH_BYTES, SharedMemoryAllReduce, Sum
from fdt.process_group.peer import ADDRESS, PeerGroup
from fdt.process_group.root import RootGroup
from fdt.process_group.streams import INLINE_BYTES, ConnectionLost, MessageStream, SharedBuffer


@pytest.fixture
def meet(tmp_path):
    """`meet(host, peer, ...)`: what each of the functions, called with its side of one group, returns or raises."""

    def run(*sides):
        host = RootGroup(tmp_path, len(sides), lambda: None, where=lambda: "train.py:10")
        results = [None] * len(sides)

        def peer(rank):
            mine = PeerGroup(tmp_path, rank, len(sides), where=lambda: "train.py:12")
            try:
                results[rank] = sides[rank](mine)
            except Exception as error:
                results[rank] = error
            mine.close()

        threads = [threading.Thread(target=peer, args=(rank,)) for rank in range(1, len(sides))]
        for thread in threads:
            thread.start()
        try:
            results[0] = sides[0](host)
        except Exception as error:
            results[0] = error
        for thread in threads:
            thread.join(60)
        host.close()
        return results

    return run


@pytest.mark.parametrize("count", [1, 7, INLINE_BYTES // 4 + 1, EACH_BYTES // 4 + 1])
def test_all_get_the_same_sum(meet, count):
    vectors = [np.random.default_rng(rank).normal(size=count).astype("float32") for rank in range(3)]
    sides = [lambda m, v=v: [m.all_reduce(v, "gradient"), m.all_reduce(2 * v, "again")] for v in vectors]
    for once, twice in meet(*sides):
        np.testing.assert_array_equal(once, (vectors[0] + vectors[1]) + vectors[2])
        np.testing.assert_array_equal(twice, (2 * vectors[0] + 2 * vectors[1]) + 2 * vectors[2])


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_ahead_writes_over_nothing_that_another_has_to_read(meet, ranks):
    count = INLINE_BYTES  # numbers: 4 times as large

    def side(process_group):
        given = (np.full(count, 10.0**process_group.rank * n, "float32") for n in range(40))
        return [np.unique(process_group.all_reduce(vector, f"v{n}")).tolist() for n, vector in enumerate(given)]

    assert meet(*[side] * ranks) == [[[n * sum(10.0**r for r in range(ranks))] for n in range(40)]] * ranks


@pytest.mark.timeout(60)
def test_who_comes_last_finds_the_others_there(tmp_path):
    sums = []
    host = RootGroup(tmp_path, 2, lambda: None)
    vector = np.ones(INLINE_BYTES, "float32")
    adds = threading.Thread(target=lambda: sums.append(host.all_reduce(vector, "v")[0]))
    with socket.socket(socket.AF_UNIX) as last:
        last.connect(str(tmp_path / ADDRESS))
        line = MessageStream(last)
        line.send({"rank": 1})
        adds.start()
        assert line.receive() == ({"there": ["v", len(vector), "<f4", 0]}, b""), "before it has said a word"
        adding, mine = SharedMemoryAllReduce(tmp_path, 2), Sum(2 * vector)
        adding.write(1, mine.vector, mine)
        line.send({"what": ["v", len(vector), "<f4", 0], "where": ""})
        assert adding.total(range(2), mine)[0] == 3.0
        adds.join()
    host.close()
    assert sums == [3.0]


@pytest.mark.parametrize(
    "error, reason",
    [
        (TimeoutError(errno.ETIMEDOUT, ""), "its host does not answer"),
        (OSError(errno.EHOSTUNREACH, ""), "its host does not answer"),
        (ConnectionResetError(errno.ECONNRESET, ""), "it closed its connection"),
    ],
)
def test_a_rank_whose_host_is_cut_off_is_no_rank_that_closed_its_connection(tmp_path, error, reason):
    def fails(nbytes):
        raise error

    stream = MessageStream(SimpleNamespace(sendall=fails, close=lambda: None), remote=True)
    listener = SimpleNamespace(take_streams=lambda: [(1, stream)], close=lambda: None)
    host = RootGroup(tmp_path, 2, lambda: None, listener)
    host._peers()
    with pytest.raises(WorkerError, match=f"^rank 1 was lost: {reason}$"):
        host._send(1, stream, {})
    host.close()


def test_ranks_of_this_host_and_of_others_add_together(tmp_path):
    far, end = socket.socketpair()

    class Door:
        def take_streams(self):
            return [(2, MessageStream(far, remote=True))]

        def close(self):
            pass

    host = RootGroup(tmp_path, 3, lambda: None, Door())
    peers = [PeerGroup(tmp_path, 1, 3), PeerGroup(tmp_path / "elsewhere", 2, 3, MessageStream(end, remote=True))]
    sums = {0: [], 1: [], 2: []}

    def add(process_group):
        for n in (1, 2, 3):
            sums[process_group.rank].append(
                float(process_group.all_reduce(np.full(INLINE_BYTES, n + process_group.rank), "v")[-1])
            )

    threads = [threading.Thread(target=add, args=(peer,)) for peer in peers]
    for thread in threads:
        thread.start()
    add(host)
    for thread in threads:
        thread.join()
    for side in (*peers, host):
        side.close()
    assert sums == dict.fromkeys(range(3), [6.0, 9.0, 12.0])


def test_a_sum_that_was_left_may_be_tried_again(tmp_path):
    """A script may go on behind a Ctrl-C, which rank 0 alone gets."""
    interrupts, summed = [KeyboardInterrupt], threading.Event()

    def check():
        if interrupts:
            raise interrupts.pop()

    def vector(n):
        return np.full(INLINE_BYTES, float(n), "float32")

    def peer():
        mine = PeerGroup(tmp_path, 1, 2)
        sums.append(mine.all_reduce(vector(10), "v")[0])
        summed.wait(30)
        sums.extend(mine.all_reduce(vector(n), "v")[0] for n in (20, 30))
        mine.close()

    sums = []
    host, thread = RootGroup(tmp_path, 2, lambda: None), threading.Thread(target=peer)
    thread.start()
    own = [host.all_reduce(vector(1), "v")[0]]
    host._check = check
    with pytest.raises(KeyboardInterrupt):
        host.all_reduce(vector(2), "v")
    summed.set()
    own += [host.all_reduce(vector(n), "v")[0] for n in (2, 3)]
    thread.join(30)
    host.close()
    assert own == sums == [11.0, 22.0, 33.0]


@pytest.mark.parametrize("count", [7, INLINE_BYTES])
def test_a_sum_that_was_left_when_some_had_come_may_be_tried_again(tmp_path, count):
    """Of three ranks the second has come, and waits."""
    interrupts, come, sums = [], threading.Event(), {1: [], 2: []}

    def check():
        if interrupts:
            raise interrupts.pop()

    def peer(rank):
        mine = PeerGroup(tmp_path, rank, 3)
        if rank == 2:
            come.wait(30)
        sums[rank] = [mine.all_reduce(np.full(count, float(rank), "float32"), "v")[0] for _ in range(2)]
        mine.close()

    host = RootGroup(tmp_path, 3, check)
    threads = [threading.Thread(target=peer, args=(rank,)) for rank in (1, 2)]
    for thread in threads:
        thread.start()
    host._peers()
    interrupts.append(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        host.all_reduce(np.full(count, 10.0, "float32"), "v")
    come.set()
    own = [host.all_reduce(np.full(count, 10.0, "float32"), "v")[0] for _ in range(2)]
    for thread in threads:
        thread.join(30)
    host.close()
    assert own == sums[1] == sums[2] == [13.0, 13.0]


def test_who_was_told_that_all_are_there_and_who_tries_again_have_one_sum(tmp_path):
    """Rank 0 was interrupted behind its word; what it lays now would not be what the other has added."""
    interrupts, sums = [], []

    def check():
        if interrupts:
            raise interrupts.pop()

    host = RootGroup(tmp_path, 2, check)
    thread = threading.Thread(target=host._peers)
    thread.start()
    peer = PeerGroup(tmp_path, 1, 2)
    thread.join(30)
    interrupts.append(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        host.all_reduce(np.full(INLINE_BYTES, 1.0), "v")
    sums.append(peer.all_reduce(np.full(INLINE_BYTES, 10.0), "v")[0])
    sums.append(host.all_reduce(np.full(INLINE_BYTES, 2.0), "v")[0])
    for side in (peer, host):
        side.close()
    assert sums == [11.0, 11.0]


def test_ranks_that_are_at_different_sums_are_named(tmp_path):
    def ahead():
        peer = PeerGroup(tmp_path, 1, 2, alone=lambda: None)
        peer._shared.number += 1
        with pytest.raises(ConnectionLost):
            peer.all_reduce(np.ones(INLINE_BYTES), "v")
        peer.close()

    host, thread = RootGroup(tmp_path, 2, lambda: None), threading.Thread(target=ahead)
    thread.start()
    with pytest.raises(
        WorkerError, match=r"rank 1 calls v \(32,768 numbers\), sum 2 at .*, and rank 0 calls .* sum 1 at"
    ):
        host.all_reduce(np.ones(INLINE_BYTES), "v")
    thread.join(30)
    host.close()


def test_no_room_for_a_vector_is_said(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError, match=r"has no room for 0.1 MB more, which the ranks exchange"):
        SharedBuffer(tmp_path / "slot").write(np.ones(INLINE_BYTES, "float32"))


def test_a_vector_may_grow(meet):
    def side(process_group):
        return [process_group.all_reduce(np.ones(n), "v").sum() for n in (10_000, 100_000, 20_000)]

    assert meet(side, side) == [[20_000, 200_000, 40_000]] * 2


def test_rank_0s_value_is_everybodys(meet):
    assert meet(*(lambda m: m.broadcast([m.rank, "now"], "time") for _ in range(2))) == [[0, "now"]] * 2


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda m: m.all_reduce(np.ones(4), "gradient"), "gradient (4 numbers)"),
        (lambda m: m.all_reduce(np.ones(INLINE_BYTES), "gradient"), "gradient (32,768 numbers)"),
        (lambda m: m.barrier("time"), "time"),
    ],
)
@pytest.mark.parametrize("count", [3, INLINE_BYTES + 1])
def test_another_exchange_is_an_error_that_names_rank_and_line(meet, monkeypatch, ask, named, count):
    ended = []
    monkeypatch.setattr(
        "fdt.process_group.peer.os._exit", lambda code: ended.append(code) or (_ for _ in ()).throw(OSError)
    )
    host, _ = meet(
        lambda m: m.all_reduce(np.ones(count), "gradient"),
        ask,
    )
    assert isinstance(host, WorkerError)
    assert f"rank 1 calls {named} at train.py:12, and rank 0 calls gradient ({count:,} n" in str(host)
    assert ended == [70]


@pytest.mark.parametrize("count", [1, INLINE_BYTES])
@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"how": "exit code 1"}, "(exit code 1)"),
        ({"how": "exit code 1", "died_of": "ValueError: no, at b.py:3"}, "(exit code 1: ValueError: no, at b.py:3)"),
    ],
)
def test_a_rank_that_left_is_an_error_that_says_how(meet, count, said, told):
    host, _ = meet(lambda m: m.all_reduce(np.ones(count), "v"), lambda m: m.end(said))
    assert f"rank 1 has ended the script {told}, and rank 0 calls v (" in str(host) and "train.py:10" in str(host)


@pytest.mark.parametrize("count", [1, INLINE_BYTES])
def test_a_lost_rank_is_an_error(meet, count):
    host, _ = meet(lambda m: m.all_reduce(np.ones(count), "v"), lambda m: None)
    assert isinstance(host, WorkerError)
    assert "rank 1 was lost" in str(host)


def test_what_ranks_did_is_gathered_at_the_end(meet):
    assert meet(lambda m: m.end(lambda: None), lambda m: m.end({"steps": 3}))[0] == [{"steps": 3}]


def test_pushes_are_answered_when_they_come_and_while_rank_0_waits(meet):
    def host(process_group):
        served = []

        def serve(push):
            served.append((push.header["n"], float(push.vector.sum())))
            push.answer(2 * push.vector, {"n": push.header["n"]})

        process_group.serve_by(serve)
        total = process_group.all_reduce(np.ones(1), "met")
        return served, total.tolist()

    def peer(process_group):
        answers = [process_group.push_pull(np.full(n, 1.0), {"n": n}) for n in (3, INLINE_BYTES)]
        process_group.all_reduce(np.ones(1), "met")
        return [(header["n"], float(vector.sum())) for vector, header in answers]

    (served, total), answers = meet(host, peer)
    assert served == [(3, 3.0), (INLINE_BYTES, float(INLINE_BYTES))]
    assert total == [2.0]
    assert answers == [(n, 2 * s) for n, s in served]


@pytest.mark.timeout(60)
def test_a_word_that_comes_while_a_push_is_served_is_heard(meet):
    def host(process_group):
        def serve(push):
            push.answer(push.vector, {})
            # as an exchange looks for more pushes, until the rank's next word is there
            while not process_group._pending:
                assert process_group.pushes() == []

        process_group.serve_by(serve)
        return process_group.all_reduce(np.ones(1), "met").tolist()

    def peer(process_group):
        process_group.push_pull(np.ones(1), {})
        return process_group.all_reduce(np.ones(1), "met").tolist()

    assert meet(host, peer) == [[2.0], [2.0]]


@pytest.mark.timeout(60)
def test_numbers_that_rank_0_reads_are_those_of_the_moment_and_place(meet):
    read_all = threading.Event()

    def read(process_group, sign):
        numbers = []
        for step in range(500):
            process_group.next_moment()
            numbers += [process_group.rank_0_reads(place, sign * (10 * step + n)) for n, place in enumerate("aab")]
        return numbers

    def host(process_group):
        process_group.serve_by(lambda push: None)
        numbers = read(process_group, 1)  # no rank has to be there
        read_all.set()
        process_group.barrier("behind")
        return numbers, read(process_group, 1), process_group.end(lambda: None)

    def behind(process_group):
        assert read_all.wait(30)
        return ahead(process_group)

    def ahead(process_group):
        numbers = read(process_group, -1)
        process_group.barrier("behind")
        more = read(process_group, -1)
        process_group.end("ended")
        return numbers, more

    (numbers, more, ended), *others = meet(host, ahead, behind)
    assert numbers == more == [10 * step + n for step in range(500) for n in range(3)]
    assert others == [(numbers, numbers)] * 2 and ended == ["ended"] * 2


@pytest.mark.parametrize("steps", [1, 50_000])
def test_rank_0_keeps_a_bounded_count_of_numbers(meet, steps):
    read_all = threading.Event()

    def read(process_group, sign):
        numbers = []
        for n in range(50_000):
            if steps > 1 or n == 0:
                process_group.next_moment()
            numbers.append(process_group.rank_0_reads("loss", sign * (n + 1)))
        return numbers

    def host(process_group):
        process_group.serve_by(lambda push: None)
        read(process_group, 1)
        kept = len(process_group._readings._log)
        read_all.set()
        return kept, process_group.end(lambda: None)

    def peer(process_group):
        assert read_all.wait(60)
        numbers = read(process_group, -1)
        kept = len(process_group._readings._numbers)
        process_group.end("ended")
        return numbers, kept

    (kept, _), (numbers, kept_there) = meet(host, peer)
    dropped = 50_000 - kept
    assert 20_000 <= kept < 40_000 and kept_there == 1
    assert numbers == [-n - 1 if n < dropped else n + 1 for n in range(50_000)]


def test_a_rank_that_waits_gets_a_number_when_rank_0_reads_it_and_its_own_when_rank_0_has_passed(meet):
    asked = threading.Event()

    def host(process_group):
        process_group.serve_by(lambda push: None)
        process_group.barrier("all are there")
        for number in (1, 2):
            process_group.next_moment()
            assert asked.wait(30)
            asked.clear()
            while not process_group._readings._asked:
                process_group.pushes()
            if number == 1:
                process_group.rank_0_reads("loss", number)
        process_group.next_moment()
        process_group.pushes()
        asked.wait(30)  # the other rank has gone on before any collective
        return process_group.end(lambda: None)

    def peer(process_group):
        process_group.barrier("all are there")
        numbers = []
        for _ in range(2):
            process_group.next_moment()
            asked.set()
            numbers.append(process_group.rank_0_reads("loss", -1))
        asked.set()
        process_group.end("ended")
        return numbers

    assert meet(host, peer) == [["ended"], [1, -1]]


def test_a_rank_keeps_a_number_that_rank_0_does_not_read(meet):
    def host(process_group):
        process_group.serve_by(lambda push: None)
        process_group.next_moment()
        process_group.rank_0_reads("logged", 1)  # at another step than the other rank, as by its own clock
        process_group.next_moment()
        process_group.rank_0_reads("loss", 2)
        process_group.barrier("behind")
        process_group.rank_0_reads("loss", 3)
        return process_group.end(lambda: None)

    def peer(process_group):
        process_group.next_moment()
        process_group.next_moment()
        read = [process_group.rank_0_reads(place, -1) for place in ("loss", "loss", "logged")]
        process_group.barrier("behind")
        read += [process_group.rank_0_reads("loss", -1) for _ in range(2)]
        process_group.end("ended")
        return read

    assert meet(host, peer) == [["ended"], [2, -1, -1, 3, -1]]


@pytest.mark.timeout(60)
def test_rank_0_reads_on_behind_a_rank_that_has_left_or_pushes(meet):
    """A rank that has left takes no numbers; a push that comes between two numbers is kept for its call."""
    pushed = threading.Event()

    def host(process_group):
        served = []

        def serve(push):
            served.append(float(push.vector.sum()))
            push.answer(push.vector, {})

        process_group.serve_by(serve)
        process_group.barrier("all are there")
        assert pushed.wait(30)
        n = 0
        while not process_group._pending or n < 1000:  # the push is there, between two numbers
            process_group.rank_0_reads("train.py:1", n)
            n += 1
        for push in process_group.pushes():
            serve(push)
        process_group.barrier("behind")
        return served, process_group.end(lambda: None)

    def leaves(process_group):
        process_group.barrier("all are there")
        process_group.end({"how": "exit code 0"})
        pushed.wait(30)

    def pushes(process_group):
        process_group.barrier("all are there")
        pushed.set()
        process_group.push_pull(np.ones(3), {})
        number = process_group.rank_0_reads("train.py:1", -1)
        process_group.barrier("behind")
        process_group.end("ended")
        return number

    host_said, _, number = meet(host, leaves, pushes)
    assert host_said == ([3.0], [{"how": "exit code 0"}, "ended"])
    assert number == 0


@pytest.mark.parametrize("how", ["exit code 0", "exit code 3"])
def test_an_asynchronous_rank_may_leave_earlier(meet, how):
    def host(process_group):
        process_group.serve_by(lambda push: None)
        return process_group.all_reduce(np.ones(1), "met").tolist(), process_group.end(lambda: None)

    assert meet(host, lambda m: m.end({"how": how}))[0] == ([1.0], [{"how": how}])


@pytest.mark.parametrize(("kind", "first"), [(np.float16, 2048), (bfloat16, 256)])
def test_16_bit_floats_are_added_in_float32_and_rounded_once(kind, first):
    parts = [np.array([value], kind) for value in (first, 1, 1)]
    total = Sum(parts[0]).of(parts)
    assert total.dtype == kind and float(total[0]) == first + 2, "first + 1 has no number of this kind"
