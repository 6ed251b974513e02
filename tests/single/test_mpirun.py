"""The reason that an error quotes when mpirun fails: recorded outputs of Open MPI 5.0.11."""

import contextlib
import sys
import tempfile
from pathlib import Path

import pytest

from fdt.launch import Explained, spawn
from fdt.launch.mpirun import MpirunProcesses, _explain, reason_in
from fdt.runs import ProcessIdentity
from tests.namespaces import until

FRAME = "-" * 74 + "\n"
MISSING = f"""{FRAME}A requested component was not found, or was unable to be opened.  This
means that this component is either not installed or is unable to be
used on your system.

Host:      vm
Framework: btl
Component: nonexistent
{FRAME}"""
UNREACHABLE = f"""{FRAME}At least one pair of MPI processes are unable to reach each other for
MPI communications.  This means that no Open MPI device has indicated
that it can be used to communicate between these processes.

  Process 1 ([[39687,1],1]) is on host: vm
  BTLs attempted: self

Your MPI job is now going to abort; sorry.
{FRAME}"""
IN_USE = (
    "[vm][[11412,1],0][/openmpi-5.0.11/opal/mca/btl/tcp/btl_tcp_component.c:1038:mca_btl_tcp_component_create_listen] "
    "bind() failed: no port available in the range [23456..23458]\n"
)
ABORTED = "\0*** An error occurred in MPI_Init_thread\n*** on a NULL communicator\n"
UNFINISHED = """\
--------------------------------------------------------------------------
prterun has exited due to process rank 1 with PID 6304 on node vm exiting
improperly. There are three reasons this could occur:

1. this process did not call "init" before exiting, but others in the
job did.
--------------------------------------------------------------------------
"""
ENDED = f"""{FRAME}prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-7996@1,1]
   Exit code:    14
{FRAME}[vm:07996] PMIX ERROR: PMIX_ERR_UNREACH in file pmix_server.c at line 3110
\0"""
NO_HOST = f"""ssh: Could not resolve hostname nosuchhost.invalid: Name or service not known\r
{FRAME}A daemon failed to report back after being spawned. This could
be due to several factors.

  Local host:    vm
{FRAME}"""
NO_FILE = f"""{FRAME}prterun was unable to launch the specified application as it could not
access an executable:

   Executable: /no/such/python
   Node: vm

while attempting to start process rank 0.
{FRAME}"""
NO_SLOTS = f"""{FRAME}There are not enough slots available in the system to satisfy the 64
slots that were requested by the application:

  python

Either request fewer procs for your application, or make more slots
available for use.
{FRAME}"""
WARNING = f"{FRAME}WARNING: An invalid value was given for btl_tcp_if_include.  This\nvalue will be ignored.\n{FRAME}"
REASONS = {
    MISSING: "A requested component was not found, or was unable to be opened: "
    "Host: vm, Framework: btl, Component: nonexistent",
    UNREACHABLE: "At least one pair of MPI processes are unable to reach each other for MPI communications: "
    "Process 1 ([[39687,1],1]) is on host: vm, BTLs attempted: self",
    IN_USE: "bind() failed: no port available in the range [23456..23458]",
    ABORTED: "An error occurred in MPI_Init_thread",
    NO_HOST: "ssh: Could not resolve hostname nosuchhost.invalid: Name or service not known",
    NO_FILE: "prterun was unable to launch the specified application as it could not access an executable: "
    "Executable: /no/such/python, Node: vm",
    NO_SLOTS: "There are not enough slots available in the system to satisfy the 64 slots that were requested by the "
    "application: python",
}


@pytest.mark.parametrize(("said", "reason"), REASONS.items(), ids=range(len(REASONS)))
def test_the_first_message_that_says_why_is_quoted(said, reason):
    assert reason_in(WARNING + said + "\0" + UNREACHABLE + ENDED) == reason


def test_a_rank_that_ends_by_itself_has_no_reason_of_mpiruns():
    assert _explain("worker", 14, ENDED).cause == "exit code 14"
    died = _explain("worker", 1, UNFINISHED)
    assert (died.rank, died.cause) == (1, "exit code 0")
    died = _explain("worker", 14, MISSING + ABORTED + ENDED)
    assert (died.rank, died.cause) == (1, f"exit code 14: {REASONS[MISSING]}")


@pytest.mark.parametrize(("said", "quoted"), [("\0\n", "no message"), ("Killed\n\0" + FRAME, "Killed")])
def test_the_last_line_with_letters_is_quoted_where_no_message_is_known(said, quoted):
    assert _explain("worker", 14, said).cause == f"mpirun ended with exit code 14: {quoted}"


def test_an_mpirun_that_hangs_has_said_why(tmp_path):
    log = tmp_path / "mpirun.log"
    log.write_text(UNREACHABLE)
    hangs = spawn([sys.executable, "-S", "-c", "import signal; signal.pause()"], {}, log)
    processes = MpirunProcesses("worker", hangs, log, log.stat().st_size)
    with contextlib.ExitStack() as stack:
        stack.callback(processes.stop, 0.0)
        assert isinstance(processes, Explained)
        assert (processes.exits(), processes.reason()) == ([], "")
        with open(log, "a") as file:
            file.write(MISSING + ABORTED)
        assert (processes.exits(), processes.reason()) == ([], REASONS[MISSING])


def test_what_an_mpirun_that_is_killed_has_left_is_ended_and_removed(tmp_path, monkeypatch):
    """mpirun gives its ssh a process group of its own, and hangs where a host is cut off. A wrapper starts it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    log, named = tmp_path / "mpirun.log", tmp_path / "mpirun"
    named.symlink_to(sys.executable)
    ssh = "import os, signal; os.setpgid(0, 0); print(os.getppid(), os.getpid(), flush=True); signal.pause()"
    waits = "import signal, subprocess, sys\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    mpirun = f"{waits}subprocess.run([{sys.executable!r}, '-S', '-c', {ssh!r}])"
    wrapper = f"{waits}subprocess.run([{str(named)!r}, '-S', '-c', {mpirun!r}])"
    hangs = spawn([sys.executable, "-S", "-c", wrapper], {}, log)
    processes = MpirunProcesses("worker", hangs, log, 0)
    reports = Path(tempfile.mkdtemp(prefix=f"fdt-mpirun-{hangs.pid}-", dir="/tmp"))
    try:
        own, pid = (int(word) for word in until(lambda: log.read_text().split()))
        for number in (own, pid):  # the second is another host's, which shares the directory
            (tmp_path / f"ompi.{number}").mkdir()
            (tmp_path / f"ompi.{number}" / "hwloc.sm").touch()
    finally:
        processes.stop(0.0)
    until(lambda: ProcessIdentity.of(pid) is None)
    assert sorted(tmp_path.iterdir()) == sorted([log, named, tmp_path / f"ompi.{pid}"])
    assert not reports.exists()
