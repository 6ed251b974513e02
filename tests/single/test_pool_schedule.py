"""The job queue of a pool: order, fairness, quotas, and that every job starts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdt.errors import UsageError, UserError
from frontends.pool.schedule import (
    HALF_LIFE_S,
    MAX_PENDING_OF_USER,
    PATIENCE,
    PRIORITIES,
    JobQueue,
    Quotas,
)


def submitted(queue, *jobs, now=0.0):
    """Submit (user, slots, priority) each; the numbers of the jobs."""
    return [queue.submit(user, slots, priority, "", now).number for user, slots, priority in jobs]


def started(queue, now=0.0):
    return [job.number for job in queue.start(now)]


def one_by_one(queue, now=0.0):
    """The order in which jobs of one slot start when each ends before the next."""
    order = []
    while queue.pending:
        (number,) = started(queue, now)
        order.append(number)
        queue.end(number, now)
    return order


def test_jobs_of_one_user_start_by_priority_and_then_in_order_of_arrival():
    queue = JobQueue(1)
    submitted(queue, ("a", 1, 0), ("a", 1, -1), ("a", 1, 5), ("a", 1, 0))
    assert one_by_one(queue) == [3, 1, 4, 2]


def test_users_have_equal_shares_whoever_came_first():
    queue = JobQueue(4)
    submitted(queue, *[("a", 1, 0)] * 6, *[("b", 1, 0)] * 6)
    assert started(queue) == [1, 7, 2, 8]


def test_who_used_less_lately_is_first():
    queue = JobQueue(1)
    submitted(queue, ("a", 1, 0))
    assert started(queue, 0.0) == [1]
    submitted(queue, ("a", 1, 0), ("b", 1, 0), now=10.0)
    queue.end(1, 100.0)
    assert started(queue, 100.0) == [3], "b has used nothing"
    queue.end(3, 140.0)
    submitted(queue, ("b", 1, 0), now=140.0)
    assert started(queue, 140.0) == [4], "40 slot-seconds are fewer than 100"


def test_usage_is_forgotten_by_halves():
    queue = JobQueue(1)
    submitted(queue, ("a", 1, 0))
    started(queue, 0.0)
    queue.end(1, 100.0)
    later = 100.0 + HALF_LIFE_S
    submitted(queue, ("b", 1, 0), now=later)
    started(queue, later)
    queue.end(2, later + 60.0)
    submitted(queue, ("b", 1, 0), ("a", 1, 0), now=later + 60.0)
    assert started(queue, later + 60.0) == [4], "of a's 100 slot-seconds 50 are left, fewer than b's 60"


def test_a_job_that_fits_overtakes_one_that_does_not_but_not_for_ever():
    queue = JobQueue(2)
    submitted(queue, ("a", 1, 0), ("b", 2, 0))
    assert started(queue) == [1]
    for passed in range(PATIENCE):
        (number,) = submitted(queue, ("a", 1, 0))
        assert started(queue) == [number], passed
        queue.end(number, 0.0)
    (number,) = submitted(queue, ("a", 1, 0))
    assert started(queue) == [] and queue.reasons(0.0) == {2: "Resources", number: "Priority"}
    queue.end(1, 0.0)
    assert started(queue) == [2]


def test_a_low_priority_waits_for_a_number_of_jobs_and_no_longer():
    queue = JobQueue(1)
    submitted(queue, ("a", 1, -1))
    for others in range(PATIENCE):
        (number,) = submitted(queue, ("a", 1, 0))
        assert started(queue) == [number], others
        queue.end(number, 0.0)
    submitted(queue, ("a", 1, 0))
    assert started(queue) == [1]


def test_quotas_bound_the_running_slots_of_a_user():
    queue = JobQueue(4, Quotas.parse("1,b=2"))
    submitted(queue, ("a", 1, 0), ("a", 1, 9), ("b", 0, 0), ("c", 0, 0))
    assert sorted(started(queue)) == [2, 3, 4]
    assert queue.reasons(0.0) == {1: "Quota"} and queue.free == 0
    queue.end(3, 0.0)
    assert started(queue) == [], "slots are free, and a has what it may have"
    queue.end(2, 0.0)
    assert started(queue) == [1]


@pytest.mark.parametrize("text", ["", "0", "a", "a=", "=3", "2,a=0", "-1", "a=1.5", "2;3"])
def test_a_quota_that_is_none_is_refused(text):
    with pytest.raises(UsageError, match="--quota must be a number of slots"):
        Quotas.parse(text)


def test_what_can_never_start_is_refused():
    queue = JobQueue(4, Quotas(of_user={"a": 2}))
    with pytest.raises(UserError, match="needs 3 slots, and 2 are the quota of a"):
        queue.submit("a", 3, 0, "", 0.0)
    with pytest.raises(UserError, match="needs 5 slots, and 4 are all that are there"):
        queue.submit("b", 5, 0, "", 0.0)
    with pytest.raises(UserError, match="--priority must be from -10 to 10. Received: 11"):
        queue.submit("b", 1, 11, "", 0.0)


def test_so_many_jobs_of_a_user_may_wait():
    queue = JobQueue(1)
    submitted(queue, *[("a", 1, 0)] * MAX_PENDING_OF_USER)
    with pytest.raises(UserError, match=f"{MAX_PENDING_OF_USER} jobs of this user wait"):
        submitted(queue, ("a", 1, 0))
    submitted(queue, ("b", 1, 0))


JOBS = st.tuples(st.sampled_from("abcd"), st.integers(1, 4), st.integers(*PRIORITIES))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(JOBS, st.none()), max_size=60), st.integers(1, 4))
def test_no_slot_is_given_twice_and_no_quota_exceeded(steps, most):
    """`None`: the running job that began first ends."""
    queue, now = JobQueue(4, Quotas(most)), 0.0
    for step in steps:
        now += 1.0
        if step is not None and step[1] <= most:
            submitted(queue, step, now=now)
        elif queue.running:
            queue.end(next(iter(queue.running)), now)
        before = queue.free
        begun = queue.start(now)
        assert sum(job.slots for job in begun) == before - queue.free and queue.free >= 0
        for user in "abcd":
            assert sum(job.slots for job in queue.running.values() if job.user == user) <= most
        assert queue.running or not queue.pending, "an empty pool has no pending job"
        assert set(queue.reasons(now)) == set(queue.pending)


def test_a_job_of_a_user_with_more_than_its_share_waits_and_starts():
    queue = JobQueue(4)
    submitted(queue, ("c", 3, 0))
    assert started(queue) == [1]
    (ours,) = submitted(queue, ("c", 1, 0))
    for others in range(PATIENCE):
        (number,) = submitted(queue, ("a", 1, 0))
        assert started(queue) == [number], others
        queue.end(number, 0.0)
    submitted(queue, ("a", 1, 0))
    assert started(queue) == [ours]


def test_a_long_queue_of_a_user_has_one_overdue_job_at_a_time():
    queue = JobQueue(4)
    submitted(queue, *[("c", 3, 0)], *[("c", 1, 0)] * 50)
    assert started(queue) == [1, 2]
    queue.end(2, 0.0)
    users = []
    for _ in range(4 * (PATIENCE + 1)):
        submitted(queue, ("a", 1, 0))
        (number,) = started(queue)
        users.append(queue.running[number].user)
        queue.end(number, 0.0)
    assert "".join(users) == ("a" * PATIENCE + "c") * 4


@settings(max_examples=60, deadline=None)
@given(
    JOBS,
    st.lists(JOBS, min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 1.0, 500.0])), min_size=1, max_size=9),
)
def test_every_job_starts_however_many_others_come(job, others, ends):
    """Without end, others of any size, user and priority are submitted; running jobs end in any order.

    The bound: a job and each older one is overdue after at most one PATIENCE for each priority and one more, overtaken
    PATIENCE times when it is the next, and then waits until 4 jobs end.
    """
    queue, now = JobQueue(4), 0.0
    submitted(queue, *others, *others)
    (ours,) = submitted(queue, job)
    most = ours * ((PRIORITIES[1] - PRIORITIES[0] + 2) * PATIENCE + 4)
    for turn in range(most):
        queue.start(now)
        if ours not in queue.pending:
            return
        which, seconds = ends[turn % len(ends)]
        now += seconds
        running = list(queue.running)
        queue.end(running[which % len(running)], now)
        if len(queue.pending) < 20:
            submitted(queue, others[turn % len(others)], now=now)
    raise AssertionError(f"after {most} other jobs it still waits: {queue.pending[ours]}")
