"""A rank that keeps the others waiting is named with its place, then given up. The clock is the test's own."""

import threading

import pytest

from fdt.rpc.job_pb2 import JobSpec
from fdt.rpc.session_pb2 import Command, Epoch, Event, Setup, Standing
from fdt.service import blame
from hfdt.engine.coordinator import RanksCoordinator
from hfdt.engine.recovery import RankRecovery
from hfdt.engine.stalls import WARN_S, Stalls

INSIDE, OUTSIDE = Standing(entered=8, left=7, place="waits"), Standing(entered=7, left=7, place="train.py:40 read")


def answers(stalls, until, ranks, start=0):
    """The first second at which somebody is late, and who; every rank answers each second with what is its own."""
    for now in range(start, until):
        for rank, note in ranks.items():
            if note is not None:
                stalls.note(rank, note(now) if callable(note) else note, now)
        late = stalls.late(now)
        if late:
            return now, late
    return None


def test_a_late_rank_is_named_once_and_then_given_up():
    stalls = Stalls(3, 20.0, 0)
    ranks = {0: INSIDE, 1: OUTSIDE, 2: INSIDE}
    now, (late,) = answers(stalls, 60, ranks)
    assert (now, late.rank, late.seconds, late.place, late.given_up) == (10, 1, 10, "train.py:40 read", False)
    now, (late,) = answers(stalls, 60, ranks, now + 1)
    assert (now, late.rank, late.given_up) == (20, 1, True)


def test_a_rank_that_does_not_answer_is_late_if_others_wait():
    now, (late,) = answers(Stalls(2, 20.0, 0), 60, {0: INSIDE, 1: None})
    assert (now, late.rank, late.place) == (10, 1, "")


def test_without_the_option_it_is_only_named():
    stalls = Stalls(2, 0, 0)
    assert answers(stalls, 1000, {0: INSIDE, 1: OUTSIDE})[0] == WARN_S
    assert answers(stalls, 1000, {0: INSIDE, 1: OUTSIDE}, int(WARN_S) + 1) is None


@pytest.mark.parametrize(
    "ranks",
    [
        {0: OUTSIDE, 1: OUTSIDE},  # all compute: a long step
        {0: INSIDE, 1: INSIDE},  # all in one exchange: a slow network
        {0: lambda now: Standing(entered=now + 1, left=now), 1: OUTSIDE},  # another exchange each time: they go on
    ],
    ids=["computing", "exchanging", "going on"],
)
def test_who_keeps_nobody_waiting_is_not_late(ranks):
    assert answers(Stalls(2, 20.0, 0), 200, ranks) is None


def test_what_has_not_been_heard_since_is_nobodys_fault():
    stalls = Stalls(2, 120.0, 0)
    assert answers(stalls, 106, {0: INSIDE, 1: OUTSIDE})[0] == 60
    assert answers(stalls, 106, {0: INSIDE, 1: OUTSIDE}, 61) is None
    assert stalls.late(120) == [], "rank 1 may have come at 106: nobody has been asked since"


def test_a_rank_that_comes_after_all_may_be_late_again():
    stalls = Stalls(2, 0, 0)
    now, _ = answers(stalls, 200, {0: INSIDE, 1: OUTSIDE})
    done = Standing(entered=8, left=8)
    assert answers(stalls, now + 5, {0: done, 1: done}, now + 1) is None
    again = Standing(entered=9, left=8)
    assert answers(stalls, 300, {0: again, 1: done}, now + 5)[0] == now + 5 + WARN_S


def asked(outcome):
    return [(rank, command.where.dump) for _, rank, command in outcome.commands if command.HasField("where")]


def test_the_engine_asks_names_and_starts_again(tmp_path):
    coordinator = RanksCoordinator(RankRecovery(None, 2))
    options = {"stall_timeout": "8", "restarts": "1"}
    coordinator.tick(0)  # the supervisor may be first
    coordinator.from_client(Command(job="j", setup=Setup(job=JobSpec(options=options))))
    coordinator.from_client(Command(job="j", epoch=Epoch(epoch=0)))
    seen = []
    for now in range(12):
        outcome = coordinator.tick(now)
        seen.append(
            (
                asked(outcome),
                [e.note.text for e in outcome.events if e.HasField("note")],
                outcome.relaunch,
                outcome.kill,
            )
        )
        for rank, note in enumerate((INSIDE, OUTSIDE)):
            coordinator.from_member("worker", rank, Event(job="j", rank=rank, standing=note))
        if outcome.relaunch:
            break
    named = [(now, asks, notes) for now, (asks, notes, _, _) in enumerate(seen) if notes]
    ((at, asks, (note,)),) = named
    assert (None, False) in seen[1][0], "all are asked"
    assert (1, True) in asks, "the stacks of the late one go into its log"
    assert "worker 1 has kept the others waiting for 4 s: it is at train.py:40 read" in note
    assert seen[-1][2:] == (2, [("worker", 1)])
    (fault,) = [event.fault for event in outcome.events]
    assert "--stall-timeout allows no longer" in fault.message and "restart 1 of 1" in fault.message
    assert len(seen) - 1 == at + 4


def test_a_thread_says_where_the_scripts_code_is():
    found, done = threading.Event(), threading.Event()

    def reads():
        found.set()
        done.wait()

    thread = threading.Thread(target=reads)
    thread.start()
    found.wait()
    note = []
    asking = threading.Thread(target=lambda: note.append(blame.place()))
    asking.start()
    asking.join()
    done.set()
    thread.join()
    assert note[0].startswith("test_hfdt_stalls.py:"), "the main thread's, which is in this test"


def test_exchanges_are_counted_as_they_are_entered_and_left():
    import tensorflow as tf

    from hfdt.collectives.adapters import CountedComm
    from hfdt.collectives.base import SoloComm

    seen = []

    class Looks(SoloComm):
        def sum(self, tensors, name):
            (tensor,) = tensors
            return [tf.py_function(lambda t: (seen.append(comm.counts()), t)[1], [tensor], tensor.dtype)]

    comm = CountedComm(Looks())
    twice = tf.function(lambda x: comm.sum([comm.sum([x], "a")[0] + 1], "b")[0])
    assert float(twice(tf.constant(1.0))) == 2.0
    assert comm.counts() == (2, 2)
    assert len(seen) == 2 and seen[1][1] <= 1, "inside the second, it has not been left"
    assert float(comm.sum([np_one()], "eager")[0]) == 1.0
    assert comm.counts() == (3, 3)


@pytest.mark.parametrize("name", ["pause", "resume"])
def test_a_rank_that_waits_for_others_to_pause_or_resume_is_in_an_exchange(name):
    from hfdt.collectives.adapters import CountedComm
    from hfdt.collectives.base import SoloComm

    seen, looks = [], SoloComm()
    setattr(looks, name, lambda: seen.append(comm.counts()))
    comm = CountedComm(looks)
    getattr(comm, name)()
    assert (seen, comm.counts()) == ([(1, 0)], (1, 1))


def np_one():
    import numpy as np

    return np.float32(1)
