"""The shm reaper: a process that outlives the owner of a store in shared memory, and then removes the store.

It first waits for the end of the owner's members. They end by themselves, and mpirun may create missing files again. It
runs as a file (fdt/blobs.py) with the smallest modules of the standard library: 10 ms of CPU, 9 MB.
"""

import contextlib
import os
import select
import signal
import sys
import time

LAST_S = 60.0  # seconds until members are killed: one that hangs in C++ does not end by itself
POLL_S = 0.1
DISK = ".disk"  # in a store, a link to the directory of blobs without room in memory


def outlive(parent: int) -> None:
    """Wait for the end of this process's parent, whose number is or was `parent`."""
    try:
        living = os.pidfd_open(parent)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # conda's Python, an old kernel and some sandboxes have no pidfd_open
        while os.getppid() == parent:
            time.sleep(POLL_S)
        return
    try:
        if os.getppid() == parent:  # otherwise it has ended, and another process may have its number
            select.select([living], [], [])
    finally:
        os.close(living)


def remove(directory: str | os.PathLike[str]) -> None:
    """Remove a store, including its part on disk."""
    import shutil

    with contextlib.suppress(OSError):
        shutil.rmtree(os.readlink(os.path.join(directory, DISK)), ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)


def _take_care(directory: str, owner: int) -> None:
    os.chdir("/")  # the script's folder may be on a disk that is to be unmounted
    outlive(owner)
    deadline = time.monotonic() + LAST_S
    while _members(directory) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    for member in _members(directory):
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)
    remove(directory)


def _members(directory: str) -> list[int]:
    """Return the processes that were started with this store in their environment."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and directory.encode() in _environment(name)]


def _environment(pid: str) -> bytes:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return file.read()
    return b""


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm sends it to all processes of a job
    _take_care(sys.argv[1], int(sys.argv[2]))
