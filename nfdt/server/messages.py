"""What a server tells: the end of an epoch, and entries of the log."""

from fdt.rpc.session_pb2 import EpochEnd, Event
from nfdt.rpc import parameter_server_pb2 as pb
from nfdt.server.algorithm_state import Logged
from nfdt.server.job import ServedJob


def epoch_end(job: ServedJob, end: EpochEnd) -> Event:
    """`end` with a snapshot of what this server owns."""
    state = job.snapshot()
    end.state.model.CopyFrom(state.model)
    end.state.optimizer.CopyFrom(state.optimizer)
    return Event(job=job.spec.id, epoch_end=end)


def to_proto(entry: Logged) -> pb.Logged:
    return pb.Logged(**vars(entry))
