"""What of a run's secrets the nodes' interfaces, arguments and environments show."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator

from tests.slurm.cluster import LOGIN

USERS_SECRET = "A_KEY=a-key-of-the-user"  # a variable of the user's
FILES = "/dev/shm/fdt-*/*.json"  # of a run, on each of its hosts but the command's own
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


def secrets_on(slurm, names: tuple[str, ...]) -> set[str]:
    """The token, a part of the private key, and the user's secret, as the run's files on these hosts have them."""
    files = [text for each in names for text in seen(slurm, each, FILES).values()]
    assert len(files) == len(names)
    name, _, value = USERS_SECRET.partition("=")
    found = {value}
    for text in files:
        task, user = (json.loads(text)[part] for part in ("task", "user"))
        assert user[name] == value
        found |= {task["FDT_TOKEN"], task["FDT_TLS"].partition("PRIVATE KEY-----")[2][:60].strip("\\n")}
    return found


@contextlib.contextmanager
def no_secret_shown(slurm, *names: str) -> Iterator[Callable[[], None]]:
    """Listen to the interfaces of these nodes, on each of which a run has members, and of the login host.

    The function that is yielded must be called while they train: it reads their secrets, and looks for them in the
    arguments of all hosts' processes and in the environments of the nodes. The login host may see the user's secret,
    which sbatch sends.
    """
    wanted: set[str] = set()

    def look() -> None:
        wanted.update(secrets_on(slurm, names))
        for name in slurm.pids:
            public = seen(slurm, name, "/proc/[0-9]*/cmdline")
            if name in names:
                assert any("host_bootstrap" in text for text in public.values())
                public |= seen(slurm, name, "/proc/[0-9]*/environ")
            shown = [path for path, text in public.items() if any(word in text for word in wanted)]
            assert shown == [], f"a secret in {shown} of {name}"

    with contextlib.ExitStack() as listening:
        heard = {name: listening.enter_context(slurm.listening(name)) for name in (*names, LOGIN)}
        yield look
    assert len(wanted) >= 3 or not names, "the user's secret, the token, the key"
    for name, file in heard.items():
        said = file.read_bytes()
        shown = [word for word in wanted if word.encode() in said and not (name == LOGIN and word in USERS_SECRET)]
        assert shown == [], f"{shown} on {name}'s interface"
        assert name == LOGIN or b"launch.sealed" in said, "srun's own messages are there"
