"""A store in shared memory exists as long as its owner and the owner's members, and no longer."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fdt import blobs, shm_reaper
from fdt.blobs import LOCK, LocalBlobs

OWNER = """
import os, pathlib, signal, subprocess, sys
from fdt import blobs
blobs.SHARED_MEMORY = pathlib.Path(sys.argv[1])
store = blobs.LocalBlobs.create()
store.put(b"x")
(store._disk() / "y").write_bytes(b"y")
env = {**os.environ, "FDT_ENGINE": f"unix:{store.directory}/engine.sock"}
member = subprocess.Popen(["sleep", "600"], env=env, stdout=subprocess.DEVNULL)
print(member.pid, store._disk(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def shared_memory(tmp_path, monkeypatch) -> Path:
    root = tmp_path / "shm"
    root.mkdir()
    monkeypatch.setattr("fdt.blobs.SHARED_MEMORY", root)
    return root


def _gone(path: Path) -> bool:
    deadline = time.monotonic() + 60
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not path.exists()


def _reapers(store: Path) -> list[psutil.Process]:
    """Those whose Python has come as far as their own words."""
    found = [p for p in psutil.process_iter(["cmdline", "cwd"]) if str(store) in (p.info["cmdline"] or ())]
    return [p for p in found if p.info["cwd"] == "/"]


def _switches(process: psutil.Process) -> int:
    """How often it has waited for something."""
    return process.num_ctx_switches().voluntary


def test_the_store_of_a_killed_owner_goes_by_itself_when_its_members_have_ended(shared_memory):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", OWNER, str(shared_memory)], env=env, stdout=subprocess.PIPE, text=True, timeout=60
    )
    assert ended.returncode == -signal.SIGKILL
    member, on_disk = ended.stdout.split()
    (store,) = shared_memory.iterdir()
    while not (found := _reapers(store)):
        time.sleep(0.02)
    looked = _switches(found[0]) + 5  # it sleeps between two looks
    while _switches(found[0]) < looked:
        time.sleep(0.02)
    assert store.exists() and Path(on_disk, "y").exists()
    os.kill(int(member), signal.SIGKILL)
    assert _gone(store) and _gone(Path(on_disk))


def test_a_member_that_does_not_end_is_killed(tmp_path, monkeypatch):
    store = tmp_path / "fdt-store"
    monkeypatch.chdir("/")
    monkeypatch.setattr(shm_reaper, "LAST_S", 0.0)
    with subprocess.Popen(["true"]) as owner:
        owner.wait()
    with subprocess.Popen(["sleep", "600"], env={"FDT_ENGINE": f"unix:{store}/engine.sock"}) as member:
        while not shm_reaper._members(str(store)):  # Popen returns a moment before the kernel lists an environment
            assert member.poll() is None
        shm_reaper._take_care(str(store), owner.pid)
        assert member.wait(60) == -signal.SIGKILL


def test_a_closed_store_leaves_neither_a_file_nor_a_process(shared_memory):
    store = LocalBlobs.create()
    beside = psutil.Process(store._shm_reaper.pid)
    assert store.directory.stat().st_mode & 0o777 == 0o700
    while not (words := beside.cmdline()):  # between fork and exec there are none
        assert beside.is_running()
    assert str(store.directory) in words
    store.put(b"x")
    store.close()
    assert not beside.is_running()
    assert list(shared_memory.iterdir()) == []


def test_a_store_that_cannot_be_made_leaves_no_process(shared_memory, monkeypatch):
    beside = blobs.start_reaper(shared_memory / "fdt-x")
    monkeypatch.setattr(blobs, "start_reaper", lambda path: beside)
    monkeypatch.setattr(blobs, "_locked", lambda path: path.chmod(0))
    with pytest.raises(OSError, match="No such file"):
        LocalBlobs.create()
    assert beside.returncode is not None
    assert list(shared_memory.iterdir()) == []


@pytest.mark.parametrize("missing", [AttributeError, OSError])
def test_the_end_of_a_parent_is_seen_without_pidfds_too(monkeypatch, missing):
    def pidfd_open(pid):
        raise missing

    parents = iter([7, 7, 1])
    monkeypatch.setattr(os, "pidfd_open", pidfd_open)
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    shm_reaper.outlive(7)
    assert next(parents, None) is None


def test_stores_that_nobody_takes_care_of_are_removed_by_the_next_and_living_ones_are_not(shared_memory):
    left, made = shared_memory / "fdt-left", shared_memory / "fdt-just-being-made"
    left.mkdir()
    (left / LOCK).touch()
    made.mkdir()
    living = LocalBlobs.create()
    other = LocalBlobs.create()
    assert not left.exists() and made.exists()
    assert living.directory.exists() and other.directory.exists()
    living.close()
    other.close()


def test_a_reaper_that_is_gone_already_is_no_harm(shared_memory):
    store = LocalBlobs.create()
    store._shm_reaper.kill()
    store.close()
    assert not store.directory.exists()
