"""Transport of tensors between a worker and a parameter server.

Control messages are protobuf on one gRPC stream per worker and shard (proto/nfdt/rpc/parameter_server.proto). Tensors
go through a file that both processes map if they share a host, else as raw chunks on that stream, directly behind the
message that announces them. A step takes one round trip: the answer to a push is the next pull.

Copies of one tensor, from the worker's gradient to the server's optimizer and back into the worker's variable:

    shared memory   push 1: into the file
                    pull 1: into the file
    gRPC stream     push 6: into a chunk, gRPC's slice, the kernel and out again, Python's bytes, the buffer
                    pull 6: the same

Files and receive buffers are read in place: the server's tensors and the worker's variables share their memory. A
buffer is written again only after its worker has pushed the gradient computed from it.

ParameterServerChannel is the interface between a worker and one parameter server, with what passes through it.
Implementations: nfdt/transport/grpc_channel.py, nfdt/server/local.py (in the worker's process),
nfdt/simulator/workers.py (on the simulated clock). This module has no I/O and no TensorFlow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fdt.timeline import trace_time
from fdt.typing import Tensor

if TYPE_CHECKING:
    from nfdt.model.shards import Ownership  # imports TensorFlow


@dataclass(frozen=True)
class WorkerGradient:
    """What a worker computed on some batches and pushes, for all variables or for those of one shard.

    Attributes:
        gradient: One tensor per trainable variable, in its shape; None where the loss does not depend on it. After
            local steps: the weights that the worker pulled minus the weights that it reached.
        samples: Number of samples.
        seconds: Time of the computation.
        finite: Whether the gradient is free of NaN and infinity.
        batches: Numbers of the batches in the epoch.
        changes: Amounts that the forward pass added to `decays` times the variables `changed`.
        changed: Positions among the non-trainable variables whose changes are pushed.
        decays: What is left of the old value of each of them: of a moving average of decay d that has followed b
            batches d^b, of a sum 1.
        logs: Logs of the training step; in a push only in lock step, as numbers.
        metrics: BlobRef of the worker's metric states; only in lock step.
        arrived: Time of the trace (fdt/timeline.py) at which this process computed or received it.
    """

    gradient: Sequence[Tensor | None]
    samples: int = 0
    seconds: float = 0.0
    finite: bool = True
    batches: Sequence[int] = (0,)
    changes: Sequence[Tensor] = ()
    changed: Sequence[int] = ()
    decays: Sequence[float] = ()
    logs: Mapping[str, Any] = field(default_factory=dict)
    metrics: Any = None
    arrived: float = field(default_factory=trace_time)


@dataclass(frozen=True)
class Weights:
    """Weights to compute on, and the batches of one push.

    Attributes:
        positions: Positions of `tensors` in the pull layout (nfdt/transport/buffers.py).
        tensors: Valid until the next request.
        ahead: Other batches that are assigned to the worker.
        pull: Number of this pull among all workers' pulls, equal on all shards.
        staleness: Staleness of the worker's last push; shard 0 sends it.
    """

    positions: Sequence[int]
    tensors: Sequence[Tensor]
    epoch: int = 0
    batches: Sequence[int] = ()
    ahead: Sequence[int] = ()
    pull: int = 0
    staleness: int = 0


@dataclass(frozen=True)
class EpochOver:
    """To a worker: the epoch has no more batches. The worker reports, then asks again.

    `generation` is the number of restorations of the servers so far, as a stream knows it.
    """

    worker: int
    epoch: int
    generation: int = 0


@dataclass(frozen=True)
class Release:
    """To a worker: the job has ended."""

    worker: int


Answer = Weights | EpochOver | Release | None  # None: a shard other than 0 has staged a push


class Interrupted(Exception):
    """A session has ended: its server has ended, or restarts from a checkpoint. `open` starts another."""


class ParameterServerChannel(Protocol):
    """A worker's way to one shard. Each request (`ask`, `push`, `end_of_data`) is followed by its `answer`.

    Attributes:
        bytes_sent: Bytes of tensors sent since the creation of the channel; 0 in one process.
        bytes_received: Bytes of tensors received.
    """

    bytes_sent: int
    bytes_received: int

    def open(self) -> None:
        """Start a session, in place of an earlier one. Raises Interrupted if it ends at once."""

    def ask(self, pull: int = 0) -> None:
        """Request weights and batches.

        Args:
            pull: To a shard other than 0: the number of the pull that shard 0 has answered.
        """

    def push(self, number: int, gradient: WorkerGradient) -> None:
        """Push this shard's part of a gradient; on shard 0 this also requests the next weights.

        Args:
            number: Rises by push. A push that is repeated with its number is applied once.
            gradient: The gradient. Its tensors are read before `answer` returns.
        """

    def end_of_data(self, batch: int) -> None:
        """Report that batch `batch` does not exist; request weights and batches."""

    def answer(self) -> Answer:
        """Wait for the answer to the last request. Raises Interrupted if the session ends."""

    def close(self) -> None:
        """End the session."""


class ChannelFactory(Protocol):
    """Connects a lane of a worker to all shards of its job."""

    def __call__(
        self, worker: int, steps: int | None, owned: "Sequence[Ownership]"
    ) -> Sequence[ParameterServerChannel]:
        """Return one channel per shard.

        Args:
            worker: Number of the lane among all workers' lanes.
            steps: Batches in an epoch; None while unknown.
            owned: Variables of each shard.
        """
