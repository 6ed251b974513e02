"""The secrets of a run, looked for in the nodes' interfaces, arguments and environments."""

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.slurm.cluster import LOGIN

USERS_SECRET = "A_KEY=a-key-of-the-user"  # a variable of the user's
FILES = "dev/shm/fdt-*/*.json"  # of a run, on each of its hosts but the command's own
PERIOD_S = 0.1
TESTS_OWN = b"\0SLURM_CONF="  # an argument of the commands that tests start by `SlurmCluster.on`
LOOK = """
import glob, json, sys
found = {}
for path in glob.glob(sys.argv[1]):
    try:
        found[path] = open(path, "rb").read().decode("latin1")
    except OSError:
        pass
print(json.dumps(found))
"""


def seen(slurm, name: str, pattern: str) -> dict[str, str]:
    """path -> text of files below /proc, or any other, on that host."""
    return json.loads(slurm.output(name, sys.executable, "-I", "-c", LOOK, pattern))


def secrets_in(text: str) -> set[str]:
    """The token, a part of the private key, and the user's secret, as a run's file on a host has them."""
    name, _, value = USERS_SECRET.partition("=")
    task, user = (json.loads(text)[part] for part in ("task", "user"))
    assert user[name] == value
    return {value, task["FDT_TOKEN"], task["FDT_TLS"].partition("PRIVATE KEY-----")[2][:60].strip("\\n")}


def secrets_on(slurm, names: tuple[str, ...]) -> set[str]:
    """The secrets of the run that has members on these hosts."""
    files = [text for each in names for text in seen(slurm, each, f"/{FILES}").values()]
    assert len(files) == len(names)
    return {USERS_SECRET.partition("=")[2]}.union(*map(secrets_in, files))


class Scan:
    """A thread that reads the arguments of all hosts' processes, ten times a second, and the secrets of their runs.

    Args:
        names: The hosts that have files with secrets.

    Attributes:
        shown: The arguments of each process, and the host's name.
        secrets: The secrets of all runs.
    """

    def __init__(self, slurm, names: tuple[str, ...]) -> None:
        self.shown: set[tuple[str, bytes]] = set()
        self.secrets: set[str] = set()
        self._roots = [Path(f"/proc/{slurm.pids[name]}/root") for name in names]
        self._hosts = {os.stat(f"/proc/{pid}/ns/pid").st_ino: name for name, pid in slurm.pids.items()}
        self._over = threading.Event()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor(1) as pool:
            scanned = pool.submit(self._scan)
            try:
                yield
            finally:
                self._over.set()
            scanned.result()  # its error

    def _scan(self) -> None:
        while not self._over.wait(PERIOD_S):
            self._read_arguments()
            for root in self._roots:
                for path in root.glob(FILES):
                    with contextlib.suppress(OSError, ValueError):  # removed, or half written
                        self.secrets |= secrets_in(path.read_text())

    def _read_arguments(self) -> None:
        for entry in os.scandir("/proc"):
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):  # ended
                    host = self._hosts.get(os.stat(f"{entry.path}/ns/pid").st_ino)
                    arguments = Path(entry.path, "cmdline").read_bytes()
                    if host and TESTS_OWN not in arguments:
                        self.shown.add((host, arguments))

    def check(self, secrets: set[str], names: tuple[str, ...]) -> None:
        for name in names:
            assert any(host == name and b"host_bootstrap" in text for host, text in self.shown), f"members of {name}"
        shown = [(host, text) for host, text in self.shown for word in secrets if word.encode() in text]
        assert shown == [], "a secret in the arguments of a process"


@contextlib.contextmanager
def no_secret_shown(slurm, *names: str, runs: int = 1) -> Iterator[Callable[[], None]]:
    """Listen to the interfaces of these nodes, on each of which a run has members, and of the login host.

    The arguments of all hosts' processes are read all the time. The function that is yielded must be called while a
    run trains: it looks for the run's secrets in the environments of the nodes' processes. The login host may see the
    user's secret, which sbatch sends. `runs`: how many runs there are, each with secrets of its own.
    """
    wanted = {USERS_SECRET.partition("=")[2]}

    def look() -> None:
        wanted.update(secrets_on(slurm, names))
        for name in names:
            public = seen(slurm, name, "/proc/[0-9]*/environ")
            shown = [path for path, text in public.items() if any(word in text for word in wanted)]
            assert shown == [], f"a secret in {shown} of {name}"

    scan = Scan(slurm, names)
    with contextlib.ExitStack() as listening:
        heard = {name: listening.enter_context(slurm.listening(name)) for name in (*names, LOGIN)}
        listening.enter_context(scan.running())
        yield look
    wanted |= scan.secrets
    assert len(wanted) >= 1 + 2 * runs or not names, "the user's secret, the token and the key of each run"
    scan.check(wanted, names)
    for name, file in heard.items():
        said = file.read_bytes()
        shown = [word for word in wanted if word.encode() in said and not (name == LOGIN and word in USERS_SECRET)]
        assert shown == [], f"{shown} on {name}'s interface"
        assert name == LOGIN or b"launch.sealed" in said, "srun's own messages are there"
