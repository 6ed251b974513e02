"""The beginning of a job, and what it means that a worker cannot begin."""

from typing import Any

from client_shim.remote import Remote
from client_shim.script import ScriptError
from fdt.errors import NeedsReplica
from fdt.rpc import session_pb2 as pb


def started(remote: Remote, feeder: Any, *, trained: bool, starts_over: bool) -> pb.Ready:
    """Set the job up.

    A step of the script may fail on a worker alone, which traces it for batches of any size. If it fails on one
    machine too, the run that starts again shows the error as Python does.

    Args:
        remote: The job.
        feeder: The thread that draws its batches.
        trained: An earlier `fit` has trained, so that the run cannot start again.
        starts_over: NeedsReplica starts the run again.
    """
    try:
        return remote.start(feeder)
    except NeedsReplica as error:
        raise NeedsReplica(str(error), error.reason, trained=trained) from None
    except ScriptError as error:
        if trained or not starts_over:
            raise
        last = str(error).strip().rpartition("\n")[2].strip()
        reason = f"a worker could not trace the step ({last})"
        raise NeedsReplica(reason, reason, trained=False) from None
