"""Reports about a job while it trains and when it ends. Each reporter, one to a file, does one thing with the records.

The client's process calls every method from one thread at a time. The order for one `fit`:

    job -> (epoch_begin -> event* -> epoch_end)* -> job_end     `note`: at any time      `close`: once, at the run's end

`event` receives each Event of the conversation as it arrives, also those between jobs; a reporter ignores those that it
does not need. `epoch_end` comes after Keras's own `on_epoch_end`, because the `val_*` logs exist only then: a callback
at the end of the list calls it, with the logs that callbacks receive. `job_end` comes however `fit` ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fdt.rpc.session_pb2 import Event


@dataclass(frozen=True)
class JobSummary:
    """The properties of one `fit` that users want to see. 0 or "" where unknown."""

    job: str
    engine: str = ""  # "hfdt" | "nfdt"
    workers: int = 1
    model: str = ""  # the model's name
    parameters: int = 0  # trainable
    gradient_bytes: int = 0  # of all trainable variables, in their own dtypes
    state_bytes: int = 0  # model and optimizer variables: sent at the start and in each snapshot
    loss: str = ""
    optimizer: str = ""
    data: str = ""  # "arrays" | "graph" | "feed"
    data_bytes: int = 0
    samples: int = 0  # per epoch
    batch_size: int = 0  # the script's global batch
    steps_per_epoch: int = 0
    epochs: int = 1
    initial_epoch: int = 0
    validation: bool = False
    verbose: int = 1  # the script's own: 0 silent, 1 bar, 2 one line per epoch ("auto" is 1)
    options: Mapping[str, str] = field(default_factory=dict)


class Reporter:
    """Receives records and ignores them; a subclass overrides the methods that it needs."""

    def job(self, job: JobSummary) -> None:
        """Handle the start of a `fit`. It follows Ready, when `steps_per_epoch` is known as well as possible."""

    def epoch_begin(self, epoch: int) -> None:
        """Handle the start of epoch `epoch` (from 0, as Keras counts)."""

    def event(self, event: "Event") -> None:
        """Handle one Event of the conversation; `event.rank` is the worker that sent it."""

    def epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Handle the end of `epoch`, after Keras's callbacks; `logs` are the final ones, with `val_*`."""

    def job_end(self) -> None:
        """Handle the end of `fit`, which returned or raised."""

    def training(self, step: int) -> None:
        """Handle a report that `step` steps are trained in a script's own loop, without `fit`. For any thread."""

    def note(self, text: str) -> None:
        """Show the user one line."""

    def close(self) -> None:
        """Handle the end of the run."""


class Reporters(Reporter):
    """Several reporters as one. A reporter that raises is removed, and training continues."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        self._reporters = list(reporters)

    def job(self, job: JobSummary) -> None:
        self._each("job", job)

    def epoch_begin(self, epoch: int) -> None:
        self._each("epoch_begin", epoch)

    def event(self, event: "Event") -> None:
        self._each("event", event)

    def epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        self._each("epoch_end", epoch, logs)

    def job_end(self) -> None:
        self._each("job_end")

    def training(self, step: int) -> None:
        self._each("training", step)

    def awaits_training(self) -> bool:
        """Return whether a reporter overrides `training`."""
        return any(type(reporter).training is not Reporter.training for reporter in self._reporters)

    def note(self, text: str) -> None:
        self._each("note", text)

    def close(self) -> None:
        self._each("close")

    def _each(self, method: str, *args: object) -> None:
        for reporter in list(self._reporters):
            try:
                getattr(reporter, method)(*args)
            except Exception as error:  # noqa: BLE001  a full disk or a closed pipe must not end the training
                if reporter in self._reporters:
                    self._reporters.remove(reporter)
                    self._each("note", f"{type(reporter).__name__} failed and is no longer used: {error}")
