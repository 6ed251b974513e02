"""The engine's interface for its callers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from fdt.blobs import LocalBlobs
from fdt.rpc.session_pb2 import Command, Event


class Engine(Protocol):
    """Trains jobs on its own members, one job at a time. Members keep running between jobs.

    Attributes:
        name: "hfdt" or "nfdt".
        workers: The number of workers.
        run_dir: The directory of the logs.
        blobs: The store of the jobs' blobs.
    """

    name: str
    workers: int
    run_dir: Path
    blobs: LocalBlobs

    def start(self) -> None:
        """Start the members and return at once; they attach when they are ready. A second call has no effect."""
        ...

    def train(self, commands: Iterator[Command]) -> Iterator[Event]:
        """Train one job.

        Args:
            commands: Setup first, Finish last. If they end earlier, the client is lost and the job is abandoned.

        Yields:
            The job's events. A failure of the job is a last Failed event; the engine can then train the next job.

        Raises:
            UserError: Members cannot be started; raised at once.
        """
        ...

    def stop(self) -> None:
        """End the members, within 5 s, and remove the blobs. A second call has no effect."""
        ...
