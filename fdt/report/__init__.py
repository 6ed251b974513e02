"""What is told about a job while it trains and when it ends. One reporter a file; each does one thing with the records.

The client's process calls every method from one thread at a time. The order for one `fit`:

    job -> (epoch_begin -> event* -> epoch_end)* -> job_end     `note`: at any time      `close`: once, at the run's end

`event` gets each Event of the conversation as it arrives, those between jobs included; those a reporter has no use for
cost nothing. `epoch_end` comes after Keras's own `on_epoch_end`, because the `val_*` logs exist only then: a callback
that stands last in the list calls it, with the logs that callbacks see. `job_end` comes however `fit` ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fdt.rpc.session_pb2 import Event


@dataclass(frozen=True)
class JobSummary:
    """What one `fit` will train: the numbers a person wants to see. 0 or "" where it is not known."""

    job: str
    engine: str = ""  # "hfdt" | "nfdt"
    workers: int = 1
    model: str = ""  # its name
    parameters: int = 0  # trainable
    gradient_bytes: int = 0  # of all trainable variables, in their own dtypes
    state_bytes: int = 0  # model and optimizer variables: what travels at the start and in each snapshot
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
    verbose: int = 1  # the script's own: 0 silent, 1 bar, 2 one line an epoch ("auto" is 1)
    options: Mapping[str, str] = field(default_factory=dict)


class Reporter:
    """Takes records, and leaves each alone; a subclass overrides what it has a use for."""

    def job(self, job: JobSummary) -> None:
        """A `fit` starts: after Ready, so that `steps_per_epoch` is as good as it gets."""

    def epoch_begin(self, epoch: int) -> None:
        """Epoch `epoch` (from 0, as Keras counts) is sent to the workers."""

    def event(self, event: "Event") -> None:
        """One Event of the conversation; `event.rank` is the worker it came from."""

    def epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Keras's callbacks are done with `epoch`; `logs` are the final ones, `val_*` included."""

    def job_end(self) -> None:
        """`fit` returned or raised."""

    def training(self, step: int) -> None:
        """So many steps are trained, where no `fit` says so: loops of the script's own. From any thread."""

    def note(self, text: str) -> None:
        """One line the user should read."""

    def close(self) -> None:
        """The run is over."""


class Reporters(Reporter):
    """Several reporters as one. A reporter that fails is left out from then on; training goes on."""

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
        """Whether any of them has a use for `training`."""
        return any(type(reporter).training is not Reporter.training for reporter in self._reporters)

    def note(self, text: str) -> None:
        self._each("note", text)

    def close(self) -> None:
        self._each("close")

    def _each(self, method: str, *args: object) -> None:
        for reporter in list(self._reporters):
            try:
                getattr(reporter, method)(*args)
            except Exception as error:  # noqa: BLE001  a full disk, a closed pipe: no reason to lose the training
                if reporter in self._reporters:
                    self._reporters.remove(reporter)
                    self._each("note", f"{type(reporter).__name__} fails and is left out. Received: {error}")
