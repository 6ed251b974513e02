"""A run of a script, as long as it lasts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from client_shim.settings import Settings
from fdt.report import Reporters

if TYPE_CHECKING:  # NumPy and protobuf, which a script that never trains may do without
    from fdt.blobs import Blobs
    from fdt.rundir import RunDir


@dataclass
class ScriptRun:
    """The engine that the script trains on, and what has been asked of it. `client`: a TrainingClient, or like one.

    `directory`: where its checkpoints are. `instead`: called in place of training, with what training would be given
    (client_shim/inspect.py).
    """

    client: Any
    settings: Settings
    reporters: Reporters
    fits: int = 0
    busy: bool = False
    directory: "RunDir | None" = None
    instead: Callable[..., Any] | None = None

    @property
    def blobs(self) -> "Blobs":
        blobs: Blobs = self.client.blobs
        return blobs

    @property
    def engine(self) -> str:
        return str(self.client.hello.engine)
