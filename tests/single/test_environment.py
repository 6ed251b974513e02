"""The environment of a member process: its cores and its variables."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from fdt import environment
from fdt.launch import LocalLauncher, Task
from hfdt.engine import launchers


@pytest.mark.parametrize(
    ("cpus", "rank", "size", "expected"),
    [
        ({0, 1, 2, 3}, 0, 2, [0, 1]),
        ({0, 1, 2, 3}, 1, 2, [2, 3]),
        ({4, 5, 6, 7, 8}, 1, 2, [6, 7, 8]),  # 5 cores for 2: none is left over
        ({0, 1}, 0, 1, None),  # alone: the whole machine
        ({0, 1}, 2, 3, None),  # more ranks than cores: the scheduler must share them
    ],
)
def test_ranks_of_a_host_share_its_cores_out(monkeypatch, cpus, rank, size, expected):
    bound = []
    monkeypatch.setattr(environment, "_place", lambda cpu: (0, cpu, cpu))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cpus)
    monkeypatch.setattr(environment, "_keep_to", lambda chosen: bound.append(list(chosen)))
    environment.bind_to_share(rank, size)
    assert bound == ([expected] if expected else [])


def test_two_threads_of_one_core_go_to_the_same_rank(monkeypatch):
    """Linux often numbers the second threads of all cores behind the first ones: 0 and 2 are one core, 1 and 3 too."""
    bound = []
    monkeypatch.setattr(environment, "_place", lambda cpu: (0, cpu % 2, cpu))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(environment, "_keep_to", lambda chosen: bound.append(list(chosen)))
    environment.bind_to_share(1, 2)
    assert bound == [[1, 3]]


def test_a_process_is_really_bound():
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("one core: nothing to share out")
    code = (
        "import os; from fdt.environment import bind_to_share, local_rank, local_size\n"
        "bind_to_share(local_rank(), local_size()); print(*os.sched_getaffinity(0))"
    )
    said = []
    for rank in range(2):
        env = {**os.environ, "FDT_LOCAL_RANK": str(rank), "FDT_LOCAL_SIZE": "2"}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        said.append(set(map(int, done.stdout.split())))
    assert said[0] | said[1] == set(cpus)
    assert not said[0] & said[1]


def test_ranks_without_mpi_are_told_how_many_they_are_now(monkeypatch, tmp_path):
    """After a loss there may be fewer of them than the run began with."""
    told = {}
    monkeypatch.setattr(
        launchers, "start_rendezvous", lambda hosts, workers: SimpleNamespace(server_address=("", workers))
    )
    monkeypatch.setattr(LocalLauncher, "start", lambda self, task: told.update(self._rank_env(1)))
    launchers.choose_launcher("gloo", tmp_path, 3).start(Task("worker", ("python",), 2))
    assert (told["HOROVOD_SIZE"], told["HOROVOD_GLOO_RENDEZVOUS_PORT"]) == ("2", "2")


FORKS = """
import subprocess, sys
from concurrent.futures import ThreadPoolExecutor
from fdt import rpc
rpc.set_up()
import grpc
server = grpc.server(ThreadPoolExecutor(1))
channel = grpc.insecure_channel(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
server.start()
grpc.channel_ready_future(channel).result(60)
ends = [subprocess.Popen(["true"], preexec_fn=lambda: None).wait() for _ in range(300)]
print({code: ends.count(code) for code in ends})
channel.close()
server.stop(None).wait()
"""


def test_processes_that_a_script_forks_do_not_end_by_grpcs_threads():
    """In a child that `subprocess` forks for a `preexec_fn`, gRPC's threads met closed descriptors: SIGABRT."""
    ran = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=100, check=False)
    assert (ran.stdout, ran.stderr) == ("{0: 300}\n", "")


def test_files_of_the_working_directory_hide_no_library(tmp_path):
    for name in ("click", "grpc", "numpy", "replica"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the working directory was imported')")
    given = [sys.executable, "-m", "hfdt", "--version"], [sys.executable, "-c", "import click"]
    ours, pythons = (subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True) for argv in given)
    assert ours.returncode == 0, ours.stderr
    assert pythons.returncode == 1  # -c puts it first
