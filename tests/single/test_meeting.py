"""Ranks of a replica script meet: sums, agreement, and an error that names who is elsewhere."""

import threading

import numpy as np
import pytest

from fdt.errors import WorkerError
from fdt.service.meeting import INLINE_BYTES, Guest, Host


@pytest.fixture
def meet(tmp_path):
    """`meet(host, guest, ...)`: what each of the functions, called with its side of one meeting, returns or raises."""

    def run(*sides):
        host = Host(tmp_path, len(sides), lambda: None)
        results = [None] * len(sides)

        def guest(rank):
            mine = Guest(tmp_path, rank, len(sides))
            try:
                results[rank] = sides[rank](mine)
            except Exception as error:
                results[rank] = error
            mine.close()

        threads = [threading.Thread(target=guest, args=(rank,)) for rank in range(1, len(sides))]
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


@pytest.mark.parametrize("count", [1, 7, INLINE_BYTES // 4 + 1])
def test_all_get_the_same_sum(meet, count):
    vectors = [np.random.default_rng(rank).normal(size=count).astype("float32") for rank in range(3)]
    sides = [lambda m, v=v: [m.add("gradient", v, str), m.add("again", 2 * v, str)] for v in vectors]
    for once, twice in meet(*sides):
        np.testing.assert_array_equal(once, (vectors[0] + vectors[1]) + vectors[2])
        np.testing.assert_array_equal(twice, (2 * vectors[0] + 2 * vectors[1]) + 2 * vectors[2])


def test_a_vector_may_grow(meet):
    def side(meeting):
        return [meeting.add("v", np.ones(n), str).sum() for n in (10_000, 100_000, 20_000)]

    assert meet(side, side) == [[20_000, 200_000, 40_000]] * 2


def test_rank_0s_value_is_everybodys(meet):
    assert meet(*(lambda m: m.same("time", [m.rank, "now"], str) for _ in range(2))) == [[0, "now"]] * 2


def test_another_exchange_is_an_error_that_names_rank_and_line(meet, monkeypatch):
    ended = []
    monkeypatch.setattr(
        "fdt.service.meeting.os._exit", lambda code: ended.append(code) or (_ for _ in ()).throw(OSError)
    )
    host, _ = meet(
        lambda m: m.add("gradient", np.ones(3), lambda: "train.py:10"),
        lambda m: m.add("gradient", np.ones(4), lambda: "train.py:12"),
    )
    assert isinstance(host, WorkerError)
    assert "rank 1: at train.py:12 for gradient (4 numbers); rank 0 is at train.py:10 for gradient (3" in str(host)
    assert ended == [70]


def test_a_rank_that_left_is_an_error_that_says_how(meet):
    host, _ = meet(lambda m: m.add("v", np.ones(1), lambda: "train.py:9"), lambda m: m.end({"how": "exit code 1"}))
    assert "rank 1: its script has ended (exit code 1); rank 0 is at train.py:9" in str(host)


def test_a_lost_rank_is_an_error(meet):
    host, _ = meet(lambda m: m.add("v", np.ones(1), str), lambda m: None)
    assert isinstance(host, WorkerError)
    assert "rank 1 was lost" in str(host)


def test_what_ranks_did_is_gathered_at_the_end(meet):
    assert meet(lambda m: m.end(lambda: None), lambda m: m.end({"steps": 3}))[0] == [{"steps": 3}]


def test_pushes_are_answered_when_they_come_and_while_rank_0_waits(meet):
    def host(meeting):
        served = []

        def serve(push):
            served.append((push.header["n"], float(push.vector.sum())))
            meeting.answer(push.rank, {"n": push.header["n"]}, 2 * push.vector)

        meeting.serve = serve
        total = meeting.add("met", np.ones(1), str)
        return served, total.tolist()

    def guest(meeting):
        answers = [meeting.push({"n": n}, np.full(n, 1.0)) for n in (3, INLINE_BYTES)]
        meeting.add("met", np.ones(1), str)
        return [(header["n"], float(vector.sum())) for header, vector in answers]

    (served, total), answers = meet(host, guest)
    assert served == [(3, 3.0), (INLINE_BYTES, float(INLINE_BYTES))]
    assert total == [2.0]
    assert answers == [(n, 2 * s) for n, s in served]


@pytest.mark.timeout(60)
def test_a_word_that_comes_while_a_push_is_served_is_heard(meet):
    def host(meeting):
        def serve(push):
            meeting.answer(push.rank, {}, push.vector)
            while not meeting._kept:  # as an exchange looks for more pushes, until the rank's next word is there
                assert meeting.arrived() == []

        meeting.serve = serve
        return meeting.add("met", np.ones(1), str).tolist()

    def guest(meeting):
        meeting.push({}, np.ones(1))
        return meeting.add("met", np.ones(1), str).tolist()

    assert meet(host, guest) == [[2.0], [2.0]]


@pytest.mark.parametrize("how", ["exit code 0", "exit code 3"])
def test_an_asynchronous_rank_may_leave_earlier(meet, how):
    def host(meeting):
        meeting.serve = lambda push: None
        return meeting.add("met", np.ones(1), str).tolist(), meeting.end(lambda: None)

    assert meet(host, lambda m: m.end({"how": how}))[0] == ([1.0], [{"how": how}])
