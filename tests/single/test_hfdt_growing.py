"""Elastic runs of HFDT without processes: which slots count, what changes the number of ranks, and the options."""

import contextlib
import os
import subprocess
import threading

import click.testing
import pytest

from fdt.blobs import LocalBlobs
from fdt.errors import TooFew, UserError
from fdt.job import BatchHooks
from fdt.launch import Task
from fdt.launch.hosts import Host
from fdt.rpc.job_pb2 import FitArguments, JobSpec, State
from fdt.rpc.session_pb2 import Command, Commit, Epoch, EpochEnd, Evaluate, Event, Failed, Finish, Ready, Setup
from fdt.supervise.joining import JoinConnection, JoinEndpoint
from hfdt import cli
from hfdt.engine import discovery, host_pool
from hfdt.engine.discovery import DiscoveryScript, HostDiscovery
from hfdt.engine.elastic import ElasticHfdtEngine
from hfdt.engine.growing import REMOVE_S, GrowingCoordinator, SizeLimits
from hfdt.engine.host_pool import ASIDE_S, SETTLE_S, HostPool, total
from hfdt.engine.offers import Offers
from hfdt.engine.recovery import RankRecovery

pytestmark = pytest.mark.timeout(120)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pool(clock):
    return HostPool(clock)


def listed(pool, **slots):
    """The script lists these hosts, all of which are ready."""
    first = not pool.unchecked() and pool.listed() == "no host"
    pool.update([Host(name, n) for name, n in slots.items()], settled=first)
    for name in slots:
        pool.ready(name, name)


def counted(pool):
    return {host.name: host.slots for host in pool.available()}


# -- slots ---------------------------------------------------------------------------------------------------------
def test_slots_that_come_count_once_they_stay_and_those_that_go_at_once(pool, clock):
    listed(pool, localhost=2)
    assert counted(pool) == {"localhost": 2}, "those of the start"
    listed(pool, localhost=3, h=1)
    assert counted(pool) == {"localhost": 2}
    clock.now += SETTLE_S
    listed(pool, localhost=3, h=1)
    assert counted(pool) == {"localhost": 3, "h": 1}
    listed(pool, localhost=1)
    assert counted(pool) == {"localhost": 1}


def test_a_host_that_flaps_counts_ever_less_often(pool, clock):
    listed(pool, localhost=2)
    pool.take(2)
    for _ in range(3):  # withdrawn while it is used
        listed(pool, localhost=1)
        assert pool.gone() == [Host("localhost", 1)]
        listed(pool, localhost=2)
        clock.now += SETTLE_S * 2 - 0.1
        assert counted(pool) == {"localhost": 1}
        clock.now += SETTLE_S * 8
        assert counted(pool) == {"localhost": 2}
        pool.take(2)


def test_a_host_must_be_ready_and_is_tried_again_later(pool, clock):
    pool.update([Host("a", 1)], settled=True)
    assert (pool.unchecked(), pool.available()) == (["a"], [])
    pool.put_aside("a", "no answer")
    pool.put_aside("a", "no answer")
    assert "a is not used: no answer" in pool.notes.get_nowait() and pool.notes.empty(), "said once"
    assert pool.unchecked() == []
    clock.now += ASIDE_S
    assert pool.unchecked() == ["a"]
    pool.ready("a", "10.0.0.1")
    assert (pool.routes, counted(pool)) == ({"a": "10.0.0.1"}, {"a": 1})
    pool.update([])
    pool.ready("a", "10.0.0.1")
    assert not pool.routes, "it went during its check"
    pool.update([Host("a", 1)], settled=True)
    assert pool.unchecked() == ["a"]


def test_a_lost_ranks_slot_is_free_again_when_its_host_comes_back(pool, clock):
    listed(pool, localhost=2)
    pool.take(2)
    pool.lost(1)
    assert counted(pool) == {"localhost": 1}
    listed(pool)
    listed(pool, localhost=2)
    clock.now += 10 * SETTLE_S
    assert counted(pool) == {"localhost": 2}


def test_offers_count_at_once_beside_listed_slots_and_end_at_once(pool):
    listed(pool, localhost=1)
    withdraw = pool.offer(Host("localhost", 2))
    assert (counted(pool), pool.listed()) == ({"localhost": 3}, "localhost:3")
    withdraw()
    assert counted(pool) == {"localhost": 1}


def test_too_few_slots_and_hosts_that_do_not_answer(pool, monkeypatch):
    listed(pool, localhost=1, h=2)
    monkeypatch.setattr(host_pool, "everywhere", lambda said, argv, timeout: dict.fromkeys(said, "timed out"))
    with pytest.raises(TooFew, match="1 slot for 3 workers") as error:
        pool.take(3)
    assert error.value.room == 1 and "h is not used: no answer: timed out" in pool.notes.get_nowait()
    assert pool.take(1) == [Host("localhost", 1)]


def test_an_unknown_loss_is_the_silent_hosts_else_the_last_slots(pool, monkeypatch):
    silent = {}
    monkeypatch.setattr(host_pool, "everywhere", lambda said, argv, timeout: silent)
    listed(pool, localhost=1, h=1, i=1)
    pool.take(3)
    pool.lost(None)
    with pytest.raises(TooFew, match="2 slots for 3"):
        pool.take(3)
    assert counted(pool) == {"localhost": 1, "h": 1}
    pool.lost(None)
    silent["h"] = "timed out"
    with pytest.raises(TooFew):
        pool.take(2)
    assert counted(pool) == {"localhost": 1}


# -- the script ----------------------------------------------------------------------------------------------------
@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "hosts.sh"
        path.write_text(text)
        path.chmod(0o755)
        return path

    return write


def test_the_script_prints_hosts(script):
    printed = script("#!/bin/sh\necho localhost:2; echo; echo ' h '")
    assert DiscoveryScript(printed).hosts() == [Host("localhost", 2), Host("h", 1)]
    assert DiscoveryScript(script("#!/bin/sh\n")).hosts() == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/sh\necho no >&2; exit 3", "failed with exit code 3: no"),
        ("#!/bin/sh\necho a b", "must print lines host:slots: a host must be a name .* 'a b'"),
        ("#!/bin/sh\necho a:0", "slots must be a number, 1 or more"),
        ("#!/bin/sh\necho a:1000000", "may print 4096 slots"),
        ("#!/bin/sh\necho a:1; echo a:2", "name each host once"),
        ("#!/bin/sh\nyes", "more than 65536 bytes"),
        ("#!/bin/sh\nhead -c 300 /dev/urandom", "must print lines host:slots"),
        ("#!/bin/sh\nsleep 600 & sleep 600", "has not ended within 0.5 s"),
        ("no program", "cannot be run: .*Exec format"),
        ("#!/no/such/shell", "cannot be run: .*No such file"),
    ],
)
def test_a_script_that_fails_is_said_in_one_line(script, text, said):
    with pytest.raises(UserError, match=said) as error:
        DiscoveryScript(script(text), timeout_s=0.5 if "600" in text else 60).hosts()
    assert "\n" not in str(error.value)


def test_a_script_that_hangs_is_killed_with_the_run(script, tmp_path):
    running = DiscoveryScript(script(f"#!/bin/sh\necho > {tmp_path}/began; sleep 600"), timeout_s=600)
    found = []

    def run():
        with pytest.raises(UserError, match="signal 9"):
            running.hosts()
        found.append("ended")

    thread = threading.Thread(target=run)
    thread.start()
    while not (tmp_path / "began").exists():
        pass
    running.close()
    thread.join(60)
    assert found == ["ended"]


def test_a_script_that_is_being_started_when_the_run_ends_is_killed(script, monkeypatch):
    running = DiscoveryScript(script("#!/bin/sh\nsleep 600"), timeout_s=600)
    start = subprocess.Popen

    def started(*args, **kwargs):
        process = start(*args, **kwargs)
        running.close()  # of another thread, which does not know the process yet
        return process

    monkeypatch.setattr(discovery.subprocess, "Popen", started)
    with pytest.raises(UserError, match="signal 9"):
        running.hosts()


def test_after_the_start_a_failing_script_changes_nothing(pool, monkeypatch):
    monkeypatch.setattr(discovery, "POLL_S", 0.001)
    answers, asked = [[Host("localhost", 1)]], threading.Event()

    def find():
        if answers:
            return answers.pop()
        asked.set()
        raise UserError("the script failed")

    with contextlib.closing(HostDiscovery(find, pool)) as found:
        found.start()
        assert asked.wait(60)
        assert pool.notes.get(timeout=60) == "the script failed; the hosts stay as they are"
        assert counted(pool) == {"localhost": 1}
        with pytest.raises(UserError, match="2 slots are needed, and after 0 s .* there are 1"):
            found.wait(2, 0.0, print)
        found.wait(1, 0.0, print)


def test_this_machine_needs_a_name_beside_other_hosts(pool):
    with contextlib.closing(HostDiscovery(lambda: [Host("localhost", 1), Host("198.51.100.1", 1)], pool)) as found:
        found.start()
        assert "by a name by which other hosts reach it" in pool.notes.get(timeout=60)


# -- joining -------------------------------------------------------------------------------------------------------
def test_who_joins_offers_slots_until_it_leaves_or_the_run_ends(pool, tmp_path):
    listed(pool, localhost=1)
    with contextlib.closing(Offers(JoinEndpoint("127.0.0.1:0", "secret"), pool, tmp_path)) as offers:
        address = offers.listener.address
        for workers, engine, said in ((0, "hfdt", "1 to 4096 workers"), (1, "nfdt", "use `hfdt join`")):
            with pytest.raises(UserError, match=said):
                JoinConnection(address, "secret", None, workers, engine)
        first, second = (JoinConnection(address, "secret", None, n, "hfdt") for n in (1, 2))
        assert counted(pool) == {"localhost": 4}
        assert not (first.place.token or first.place.addresses), "the caller gets no secret"
        first.close()
        while counted(pool) != {"localhost": 3}:
            pass
    assert second.over.wait(60)
    second.check()
    second.close()
    assert not list(tmp_path.iterdir())


def test_the_name_of_a_caller(pool, tmp_path, monkeypatch):
    listed(pool, localhost=1)
    monkeypatch.setattr("socket.gethostbyname", {"node2": "198.51.100.1"}.__getitem__)
    with contextlib.closing(Offers(JoinEndpoint("127.0.0.1:0", "secret"), pool, tmp_path)) as offers:
        assert offers._name("vm", "ipv4:127.0.0.1:9") == offers._name("vm", "ipv6:%5B::1%5D:9") == "localhost"
        assert offers._name("node2", "ipv4:198.51.100.1:9") == "node2"
        assert offers._name("node2", "ipv4:198.51.100.2:9") == "198.51.100.2"
        with pytest.raises(ValueError, match="by IPv4"):
            offers._name("node2", "ipv6:%5B2001:db8::1%5D:9")


# -- the coordinator -----------------------------------------------------------------------------------------------
class Group:
    """A job on the slots of a pool: its ranks are those that were launched last."""

    def __init__(self, pool, blobs, least=1, most=0, hooks=BatchHooks.NONE, **options):
        self.pool, self.size = pool, len(pool.take(total(pool.available())))
        recovery = RankRecovery(blobs, total(pool.in_use), elastic=True)
        self.coordinator = GrowingCoordinator(recovery, pool, SizeLimits(least, most, timeout_s=60.0))
        job = JobSpec(options=options, fit=FitArguments(batch_hooks=int(hooks)))
        self.client(setup=Setup(job=job))
        self.all(ready=Ready())

    def done(self, outcome):
        if outcome.relaunch:
            self.pool.take(outcome.relaunch)
        return outcome

    def client(self, **kind):
        return self.done(self.coordinator.from_client(Command(job="j", **kind)))

    def say(self, rank, **kind):
        return self.done(self.coordinator.from_member("worker", rank, Event(job="j", rank=rank, **kind)))

    def all(self, **kind):
        return [self.say(rank, **kind) for rank in range(total(self.pool.in_use))][-1]

    def tick(self, now=0.0):
        return self.done(self.coordinator.tick(now))


@pytest.fixture
def blobs(tmp_path):
    return LocalBlobs(tmp_path)


def kinds(outcome):
    return [command.WhichOneof("kind") for _, _, command in outcome.commands]


def said(outcome):
    texts = (event.membership.message or event.note.text or event.fault.message for event in outcome.events)
    return " | ".join(filter(None, texts))


def test_ranks_come_at_a_commit_that_the_others_make_when_asked(pool, blobs):
    listed(pool, localhost=1)
    group = Group(pool, blobs)
    group.client(epoch=Epoch(epoch=0))
    pool.offer(Host("localhost", 2))
    assert kinds(group.tick()) == ["suspend"]
    assert kinds(group.tick(5.0)) == [], "asked once"
    outcome = group.say(0, commit=Commit(epoch=0, step=7, state=State(model=blobs.put(b"model"))))
    assert (outcome.relaunch, kinds(outcome)) == (3, ["setup", "epoch"])
    assert outcome.commands[1][2].epoch.begin.step == 7, "no step is repeated"
    assert said(outcome) == (
        "2 slots of localhost joined; training continues from step 7 of epoch 1, with -np 3 instead of 1"
    )
    assert outcome.events[0].HasField("commit"), "a checkpoint of the run, too"


def test_ranks_come_when_an_epoch_begins_and_not_in_validation_or_at_the_end(pool, blobs):
    listed(pool, localhost=1)
    group = Group(pool, blobs, most=2)
    pool.offer(Host("localhost", 5))
    assert group.client(evaluate=Evaluate(epoch=0)).relaunch == 0
    assert not group.tick().commands
    group.coordinator.from_member("worker", 0, Event(job="j", evaluated={}))
    assert group.client(epoch=Epoch(epoch=0)).relaunch == 2, "--max-np"
    assert not group.tick().commands
    group.all(epoch_end=EpochEnd())
    pool.offer(Host("localhost", 5))
    assert kinds(group.client(finish=Finish())) == ["finish"]


def test_a_request_that_came_too_late_for_an_epoch_holds_for_the_next(pool, blobs):
    listed(pool, localhost=1)
    group = Group(pool, blobs)
    group.client(epoch=Epoch(epoch=0))
    withdraw = pool.offer(Host("localhost", 1))
    assert kinds(group.tick()) == ["suspend"]
    withdraw()
    group.all(epoch_end=EpochEnd())
    outcome = group.client(epoch=Epoch(epoch=1))
    assert (outcome.relaunch, kinds(outcome)) == (1, ["setup", "epoch"]), "the ranks would end this epoch early"
    assert said(outcome) == "training continues from the beginning, with -np 1"


def test_ranks_leave_at_a_commit_or_without_one_after_some_seconds(pool, blobs):
    listed(pool, localhost=3)
    group = Group(pool, blobs)
    group.client(epoch=Epoch(epoch=0))
    listed(pool, localhost=2)
    assert kinds(group.tick(10.0)) == ["suspend"]
    assert group.tick(10.0 + REMOVE_S - 0.1).relaunch == 0
    outcome = group.tick(10.0 + REMOVE_S)
    assert (outcome.relaunch, kinds(outcome)) == (2, ["setup", "epoch"])
    assert said(outcome).startswith("1 slot of localhost left; training continues from the beginning")
    group.all(epoch_end=EpochEnd())
    listed(pool, localhost=1)
    assert group.tick(20.0).relaunch == 1, "between epochs at once"


def test_without_enough_slots_training_waits_and_then_ends(pool, blobs):
    listed(pool, localhost=2)
    group = Group(pool, blobs, least=2)
    group.client(epoch=Epoch(epoch=0))
    listed(pool, localhost=1)
    group.tick(0.0)
    outcome = group.tick(REMOVE_S)
    assert (outcome.pause, outcome.relaunch) == (True, 0)
    assert said(outcome) == (
        "1 slot of at least 2 (--min-np) can be used (localhost:1); training waits for more, 60 s at most"
    )
    assert group.tick(10.0).events == []
    withdraw = pool.offer(Host("localhost", 1))
    outcome = group.tick(20.0)
    assert (outcome.relaunch, kinds(outcome)) == (2, ["setup", "epoch"])
    withdraw()
    group.tick(30.0)
    assert group.tick(30.0 + REMOVE_S).pause
    group.tick(40.0)
    (event,) = group.tick(100.0).events
    assert "no more came within 60 s (--elastic-timeout)" in event.failed.message
    assert group.coordinator.failed


def test_a_job_that_only_had_to_finish_does_not_wait(pool, blobs):
    listed(pool, localhost=2)
    group = Group(pool, blobs, least=2)
    listed(pool, localhost=1)
    assert group.tick().pause
    (event,) = group.client(finish=Finish()).events
    assert event.HasField("finished") and group.coordinator.done and not group.coordinator.failed


def lose(group, rank=1):
    return group.done(group.coordinator.lost("worker", rank, Failed(message="worker 1 was lost")))


def test_a_lost_rank_is_restarted_first_and_then_left_out(pool, blobs):
    listed(pool, localhost=2)
    group = Group(pool, blobs, restarts="1")
    group.client(epoch=Epoch(epoch=0))
    assert lose(group).relaunch == 2
    outcome = lose(group)
    assert (outcome.relaunch, said(outcome)) == (
        1,
        "worker 1 was lost; training continues without it from the beginning, with -np 1",
    )
    assert not group.tick().commands, "its slot is not used again"
    assert lose(group, 0).events[0].failed.message == "worker 1 was lost", "this machine has no slot left"


def test_a_lost_host_costs_no_restart_and_is_waited_for(pool, blobs, monkeypatch):
    monkeypatch.setattr(host_pool, "everywhere", lambda said, argv, timeout: {})
    listed(pool, localhost=1, h=1)
    group = Group(pool, blobs, least=2, restarts="1")
    group.client(epoch=Epoch(epoch=0))
    listed(pool, localhost=1)
    outcome = lose(group)
    assert outcome.pause and "worker 1 was lost" in said(outcome)
    assert group.coordinator.short(1, Failed(message="no answer from h")).pause


def test_where_an_epoch_cannot_be_repeated_the_ranks_stay(pool, blobs):
    listed(pool, localhost=1)
    group = Group(pool, blobs, hooks=BatchHooks.LOGS)
    pool.offer(Host("localhost", 1))
    assert kinds(group.client(epoch=Epoch(epoch=0))) == ["epoch"]
    assert not group.tick().commands
    assert lose(group, 0).events[0].HasField("failed")


# -- the engine ----------------------------------------------------------------------------------------------------
class Started:
    """Launched processes that never end by themselves."""

    def __init__(self, task):
        self.count = task.count

    def exits(self):
        return []

    def stop(self, grace_s=2.0):
        pass


def test_between_fits_the_ranks_of_withdrawn_hosts_are_replaced(pool, tmp_path, monkeypatch):
    sizes = []

    def start(self, task: Task):
        sizes.append(task.count)
        return Started(task)

    monkeypatch.setattr("hfdt.engine.launchers.MpirunLauncher.start", start)
    monkeypatch.setattr("hfdt.engine.launchers.LocalLauncher.start", start)
    listed(pool, localhost=3)
    closed = threading.Event()
    engine = ElasticHfdtEngine(pool, SizeLimits(1), tmp_path, close=closed.set)
    try:
        engine.start()
        engine.start()
        assert sizes == [3]
        listed(pool, localhost=1)
        engine.start()
        assert sizes == [3, 1]
        listed(pool)
        with pytest.raises(TooFew, match="there are 0 slots, and 1 are needed"):
            engine.start()
    finally:
        engine.stop()
    assert closed.is_set()


# -- the command line ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--max-np 3", "--max-np needs --host-discovery-script or --join-at. Received: 3 alone"),
        ("--elastic-timeout 5s", "--elastic-timeout needs"),
        ("--host-discovery-script {plain}", "must be executable: chmod +x"),
        ("--host-discovery-script /no/file", "does not exist"),
        ("--host-discovery-script {good} -H a:1", "names the hosts"),
        ("--host-discovery-script {good} --algorithm dane", "needs --algorithm allreduce"),
        ("--host-discovery-script {good} --batch per-worker", "Received: --batch per-worker"),
        ("--host-discovery-script {good} -np 2 --min-np 3", "--min-np must be at most -np, which is 2"),
        ("--host-discovery-script {good} -np 4 --max-np 3", "--max-np must be at least -np and --min-np, here 4"),
        ("--host-discovery-script {good} --server 127.0.0.1:1", "must be given to `hfdt serve`"),
        ("--host-discovery-script {good} --emulate {plain}", "--emulate takes the workers from its file"),
        ("--host-discovery-script {bad}", "failed with exit code 4"),
        ("--host-discovery-script {good} -np 3 --elastic-timeout 0s", "3 slots are needed, and after 0 s"),
        ("--join-at 0.0.0.0:0", "needs TLS"),
        ("--join-at x", "an address must be HOST:PORT"),
    ],
)
def test_wrong_options_are_said_in_one_line(options, message, tmp_path, monkeypatch):
    monkeypatch.delenv("FDT_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    files = {"plain": "localhost:1", "good": "#!/bin/sh\necho localhost:1", "bad": "#!/bin/sh\nexit 4"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        os.chmod(tmp_path / name, 0o644 if name == "plain" else 0o755)
    (tmp_path / "train.py").write_text("import keras\nmodel = keras.Model()\nmodel.fit()\n")
    words = options.format(**{name: str(tmp_path / name) for name in files}).split()
    result = click.testing.CliRunner().invoke(cli.main, ["run", *words, "train.py"])
    assert result.exit_code in (1, 2) and message in result.output, result.output
    assert "Traceback" not in result.output
