"""The fixtures of all tests: TensorFlow's threads bounded before its import, real data, a check of left processes."""

import ast
import functools
import gc
import os
import runpy
import select
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from fdt.environment import hidden, lasting

ROOT = Path(__file__).resolve().parent.parent
for name, value in {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",  # its sums depend on the shape of the batch more than the comparisons allow
    "CUDA_VISIBLE_DEVICES": "-1",
    "MPLBACKEND": "Agg",
    # Horovod's default: a rank that waits takes less of a core than at HFDT's 0.1 ms (benchmarks/README.md).
    "HOROVOD_CYCLE_TIME": "1",
}.items():
    os.environ.setdefault(name, value)

DATASETS = {
    "fashion_mnist": "fashion-mnist/train-images-idx3-ubyte.gz",
    "mnist": "mnist.npz",
    "cifar10": "cifar-10-batches-py",
}
GRACE_S = 60.0  # on a busy machine a process may stand still for seconds before it ends
MARK = "FDT_TEST_SESSION"  # inherited by whatever the tests start
# The modules that take longest. They start first, so that short ones, and not one of these alone, fill the end.
LONGEST = (
    *("integration/test_regression.py", "integration/test_endings.py", "wrong/test_wrong.py"),
    *("parallel/test_sharded.py", "integration/test_compat.py", "integration/test_verify.py"),
    *("parallel/test_zoo.py", "integration/test_same_numbers.py", "parallel/test_nfdt_faults.py"),
)


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: what we start would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ[MARK] = str(os.getpid())
    _use_local_datasets()
    _prepend_to_path(ROOT / "tests" / "startup")
    ast.parse = _one_at_a_time(ast.parse)
    hypothesis.settings.register_profile("fdt", deadline=None)  # no test depends on time
    hypothesis.settings.load_profile("fdt")


def _one_at_a_time(function):
    """Return `function` behind a lock: tests run ranks as threads, and two threads in CPython 3.11's `ast.parse` raise
    SystemError where a garbage collection switches from one to the other (python/cpython#106905).
    """
    lock = threading.RLock()

    @functools.wraps(function)
    def locked(*args, **kwargs):
        with lock:
            return function(*args, **kwargs)

    return locked


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude the imports of the tests' modules from garbage collection: a sixth of a test's time (measured).

    The rest is collected less often than by default, as in the processes that tests start (startup/sitecustomize.py).
    No test uses what Keras does with the packages that are hidden from it.
    """
    gc.set_threshold(20_000, 20, 50)
    with lasting(), hidden(("matplotlib", "sklearn")):
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {ROOT / "tests" / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


def _use_local_datasets() -> None:
    """The data sets that `.ci/run` unpacks, for this process and for the scripts that tests start."""
    home, offline = ROOT / ".cache" / "keras_home", ROOT.parent / "shared" / "datasets" / "offline"
    if not (home / ".complete").exists():
        return
    os.environ.setdefault("KERAS_HOME", str(home))
    if offline.is_dir() and str(offline) not in os.environ.get("PYTHONPATH", ""):
        _prepend_to_path(offline)
        runpy.run_path(str(offline / "sitecustomize.py"))


def _prepend_to_path(folder: Path) -> None:
    """For the processes that tests start: a module `sitecustomize` of `folder` runs when they start."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


@pytest.fixture(autouse=True)
def unseeded() -> Iterator[None]:
    """A test that seeds TensorFlow decides nothing for those behind it."""
    yield
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].random.set_seed(None)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """A test that sets a signal's handler decides nothing for those behind it, whose Ctrl-C would have no effect."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(scope="session")
def dataset():
    """`dataset("cifar10")` skips the test where that data set is neither on disk nor to be had."""

    def need(name: str) -> None:
        home = Path(os.environ.get("KERAS_HOME", Path.home() / ".keras"))
        if not (home / "datasets" / DATASETS[name]).exists() and not _online():
            pytest.skip(f"{name}: not in {home}, and nothing can be downloaded")

    return need


def _online() -> bool:
    try:
        urllib.request.urlopen("https://storage.googleapis.com", timeout=5).close()
    except urllib.error.HTTPError:
        return True  # it answered
    except OSError:
        return False
    return True


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A directory of the test's own, private as the engines want it."""
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    return directory


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fails the run when a process that a test started, whoever its parent is by now, is still alive at the end."""
    yield
    left = survivors()
    deadline = time.monotonic() + GRACE_S
    while left and time.monotonic() < deadline:
        for pid in left:
            _wait(pid, deadline)
        left = survivors()
    assert not left, f"processes left behind by the tests: {left}"


def survivors() -> dict[int, str]:
    """pid -> command line of the living processes that carry this session's mark, ourselves left out."""
    mark = f"{MARK}={os.getpid()}\0".encode()
    return {pid: _command(pid) for pid in _processes() if pid != os.getpid() and mark in _read(pid, "environ") + b"\0"}


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()  # a zombie's is empty
    except OSError:
        return b""


def _command(pid: int) -> str:
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def _wait(pid: int, deadline: float) -> None:
    """Until the process ends or the deadline is reached."""
    try:
        descriptor = os.pidfd_open(pid)
    except (OSError, AttributeError):
        return
    select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
    os.close(descriptor)


if sys.platform != "linux":
    raise pytest.UsageError("the tests read /proc: they run on Linux")
