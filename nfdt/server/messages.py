"""Messages of a server: the end of an epoch, and log entries."""

from fdt.rpc.session_pb2 import EpochEnd, Event
from nfdt.rpc import parameter_server_pb2 as pb
from nfdt.server.algorithm_state import Logged
from nfdt.server.job import ServedJob


def epoch_end(job: ServedJob, end: EpochEnd) -> Event:
    """Return the event `end` with a snapshot of the variables that this server owns."""
    state = job.snapshot()
    end.state.model.CopyFrom(state.model)
    end.state.optimizer.CopyFrom(state.optimizer)
    return Event(job=job.spec.id, epoch_end=end)


def to_proto(entry: Logged) -> pb.Logged:
    """Return a log entry as its protobuf message."""
    return pb.Logged(**vars(entry))
