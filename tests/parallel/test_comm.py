"""The contract of all Comms (comm_contract.py): one rank, in memory, and Horovod and MPI as processes."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import comm_contract
from under_mpirun import needs_mpirun, run

from fdt.errors import UserError
from hfdt.collectives import choose, initialized_mpi
from hfdt.collectives.base import SoloComm
from tests.in_process_comm import on_ranks

MODULES = {"horovod": "horovod", "mpi": "mpi4py"}
EAGER = [
    comm_contract.adds,
    comm_contract.scatters_sums_and_gathers,
    comm_contract.keeps_dtypes,
    comm_contract.passes_what_is_not_finite_on,
    comm_contract.multicasts,
]


@pytest.mark.parametrize("check", comm_contract.CONTRACT, ids=lambda check: check.__name__)
def test_alone(check):
    check(SoloComm())


@pytest.mark.parametrize("check", EAGER, ids=lambda check: check.__name__)
def test_in_memory(check):
    on_ranks(3, check)


def test_in_memory_ranks_that_ask_for_different_things_are_told():
    with pytest.raises(RuntimeError, match="same collective"):
        on_ranks(2, lambda comm: comm.sum([1.0], f"rank {comm.rank}"))


@pytest.fixture(scope="module")
def kept():
    """Those of MODULES that are installed: two processes have found that they keep the contract."""
    installed = [name for name, module in MODULES.items() if importlib.util.find_spec(module)]
    run(2, "comm_contract.py", *installed, timeout_s=240)
    return installed


@needs_mpirun
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MODULES)
def test_as_processes(name, kept):
    pytest.importorskip(MODULES[name])
    assert name in kept


def test_one_rank_needs_neither_horovod_nor_mpi():
    comm, notes = choose("horovod", 0, 1)
    assert (comm.rank, comm.size, notes) == (0, 1, [])


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match="auto, horovod or mpi. Received: 'nccl'"):
        choose("nccl", 0, 2)


def test_ranks_without_a_usable_mpi4py_are_initialized_by_horovod(tmp_path, monkeypatch):
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("from types import SimpleNamespace\nrc = SimpleNamespace()\n")
    (tmp_path / "mpi4py" / "MPI.py").write_text("raise RuntimeError('cannot load MPI library')\n")
    for name in [each for each in sys.modules if each.partition(".")[0] == "mpi4py"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with initialized_mpi("mpi", 2):
        assert "mpi4py.MPI" not in sys.modules
    monkeypatch.delitem(sys.modules, "mpi4py")


@pytest.mark.parametrize(("set_here", "initialized"), [("", 0), ("", 1), ("HOROVOD_TIMELINE", 1)])
def test_horovod_starts_again_with_an_mpi_of_others_unless_it_would_lose_something(set_here, initialized, monkeypatch):
    from hfdt.collectives.horovod import _starts_again

    for name in ("HOROVOD_TIMELINE", "HOROVOD_AUTOTUNE"):
        monkeypatch.delenv(name, raising=False)
    if set_here:
        monkeypatch.setenv(set_here, "timeline.json")
    library = SimpleNamespace(MPI_Initialized=lambda found: setattr(found._obj, "value", initialized))
    again = _starts_again(SimpleNamespace(_basics=SimpleNamespace(MPI_LIB_CTYPES=library)))
    assert again == (bool(initialized) and not set_here)
