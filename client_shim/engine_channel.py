"""The client's two channels to an engine during one job: commands and events, and batches."""

from collections.abc import Iterator
from typing import Protocol

from fdt.rpc import session_pb2 as pb


class EngineChannel(Protocol):
    """A conversation with the engine about one job; fdt.service.client.Conversation implements it."""

    def send(self, command: pb.Command) -> None:
        """Send `command` to the engine."""
        ...

    def events(self) -> Iterator[pb.Event]:
        """Yield the engine's events until the conversation ends."""
        ...

    def interrupt(self) -> None:
        """End `events`. Takes no lock, so that a signal handler may call it."""
        ...

    def close(self) -> None:
        """End the conversation after the job has finished."""
        ...

    def cancel(self) -> None:
        """Cancel the job; never raises."""
        ...


class BatchFeeder(Protocol):
    """Draws the batches that the job's data leave to the client; client_shim.feed.Feeder implements it."""

    def wanted(self, wanted: pb.FeedWanted) -> None:
        """Allow batches of `wanted.epoch` with an index below `wanted.up_to` to be sent."""
        ...

    def finish_epoch(self, epoch: int) -> None:
        """Wait until the epoch is drawn to its end, if workers asked for all of it."""
        ...

    def stop(self) -> None:
        """End the feeder. Raises the error that the script's own data raised, if any."""
        ...
