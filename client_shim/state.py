"""State of one run of a script, and the command line's decisions about capture."""

import contextlib
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from client_shim.preemption import Preemption
from client_shim.surroundings import Surroundings
from fdt.errors import NeedsReplica, UserError, WorkerError
from fdt.report import Reporters

if TYPE_CHECKING:  # NumPy and protobuf, which a script that never trains may do without
    from fdt.blobs import Blobs
    from fdt.rundir import RunDir


@dataclass(frozen=True)
class Settings:
    """The command line's decisions about capture.

    Attributes:
        options: Options that go into every job unchanged (fdt/job.py).
        seed: The seed of the jobs; None: the script's own, otherwise a random one.
        own_loops: Training outside `fit` may run in this process only, because the user asked for it.
        starts_over: NeedsReplica starts the run again (client_shim/replica/detection.py).
    """

    options: dict[str, str] = field(default_factory=dict)
    seed: int | None = None
    own_loops: bool = False
    starts_over: bool = False


@dataclass
class ScriptRun:
    """The engine that a script trains on, and the state of the script's run.

    Attributes:
        client: A TrainingClient or an object with its interface.
        settings: The command line's decisions about capture.
        reporters: What receives progress, notes and summaries.
        fits: The number of `fit` calls that have trained so far.
        busy: Whether a `fit` is running.
        directory: The run's directory with its checkpoints; None: no checkpoints.
        preemption: What SIGTERM and SIGUSR1 ask of a run with a directory.
        traced: What the last `fit` of each model traced (client_shim/changed_objects.py).
        instead: Called in place of training with the CapturedFit (client_shim/inspect.py).
        refused: The first error of this project's that the script was given, and which it may have caught.
        trained: Whether a `fit` has ended well.
        began_in: The folder and the environment before the script.
        changed_variables: Environment variables that were others at a `fit`.
    """

    client: Any
    settings: Settings
    reporters: Reporters
    fits: int = 0
    busy: bool = False
    directory: "RunDir | None" = None
    preemption: Preemption = field(default_factory=Preemption)
    traced: MutableMapping[Any, Any] = field(default_factory=weakref.WeakKeyDictionary)
    instead: Callable[..., Any] | None = None
    refused: UserError | None = None
    trained: bool = False
    began_in: Surroundings = field(default_factory=Surroundings.now)
    changed_variables: set[str] = field(default_factory=set)
    _refused_model: Any = None

    @contextlib.contextmanager
    def remembering(self, model: Any = None) -> Iterator[None]:
        """Keep the first error that leaves the context: a script may catch it, and go on without that training.

        A lost worker is forgotten where the script trains the same model once more.

        Args:
            model: What is trained within.
        """
        earlier = self.fits
        try:
            yield
        except UserError as error:
            if isinstance(error, NeedsReplica) and earlier:
                error.after_training()
            if self.refused is None:
                self.refused, self._refused_model = error, model
            raise
        self.trained = True
        if isinstance(self.refused, WorkerError) and self._refused_model is model:
            self.refused = None

    @contextlib.contextmanager
    def fitting(self) -> Iterator[None]:
        """Be busy while the context lasts."""
        self.busy = True
        try:
            yield
        finally:
            self.busy = False

    def count_fit(self) -> None:
        """Count a `fit` that trains."""
        self.fits += 1

    @property
    def resumed(self) -> bool:
        """Whether the run continues from checkpoints of its own."""
        return self.directory is not None and self.directory.resumed

    @property
    def blobs(self) -> "Blobs":
        """Shared memory of the client and the engine."""
        blobs: Blobs = self.client.blobs
        return blobs

    @property
    def engine(self) -> str:
        """The engine's name: "hfdt" or "nfdt"."""
        return str(self.client.hello.engine)
