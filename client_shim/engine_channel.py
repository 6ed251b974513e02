"""The client's channel to an engine during one job: commands and events."""

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
