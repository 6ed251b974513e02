"""What a server framework is to those who call it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from fdt.blobs import LocalBlobs
from fdt.rpc.session_pb2 import Command, Event


class Engine(Protocol):
    """Trains jobs on members of its own. One job at a time; members stay warm between jobs.

    Attributes: name ("hfdt" | "nfdt"), workers (how many), run_dir (logs), blobs (the job's store).
    """

    name: str
    workers: int
    run_dir: Path
    blobs: LocalBlobs

    def start(self) -> None:
        """Start the members; returns at once, they attach when they are ready. Starting twice is fine."""
        ...

    def train(self, commands: Iterator[Command]) -> Iterator[Event]:
        """One job: Setup first, Finish last. If `commands` ends early the client is gone: the job is abandoned.

        Failures of the job come as a last Failed event; the engine can then train the next job. Raises UserError, at
        once, when members cannot be started.
        """
        ...

    def stop(self) -> None:
        """End the members, within 5 s, and remove the blobs. Stopping twice is fine."""
        ...
