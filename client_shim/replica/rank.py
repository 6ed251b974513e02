"""A rank of a replicated script: its configuration, the engine's patches for it, and reports of its steps.

The patches are installed when the script imports TensorFlow.
"""

import contextlib
import functools
import importlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from client_shim.replica.rewriting import rewritten
from client_shim.replica.skippable_regions import RegionHooks
from client_shim.script import Rewrite
from fdt.cli import module_of
from fdt.environment import bound_to_share
from fdt.patches import at_imports
from fdt.process_group import ReplicaGroup
from fdt.report import Reporters

VARIABLE = "FDT_REPLICA"  # a follower's RankConfig as JSON
REPORT_S = 0.5  # seconds between two reports of steps


class ReplicaRank(Protocol):
    """An engine's patches for one rank of a replicated script, made when the script imports TensorFlow."""

    @property
    def skippable_regions(self) -> Any:
        """The `rank` of StepHooks (rewriting.py, skippable_regions.py); None: the script's code is not rewritten."""

    def in_tensorflow(self) -> contextlib.AbstractContextManager[None]:
        """Within the context, TensorFlow is patched."""

    def in_keras(self, flavor: str) -> contextlib.AbstractContextManager[None]:
        """Within the context, the Keras of `flavor` ("keras" or "tf_keras") is patched."""

    def counts(self) -> Mapping[str, Any]:
        """Return this rank's steps, samples, replicated (steps) and sent_bytes so far.

        For the end of the run: `algorithm`, its name, and `notes`, lines.
        """

    def steps(self) -> int:
        """Return the number of this rank's steps so far. Cheap, and callable from any thread."""

    def in_line(self) -> bool:
        """Return whether the script has not begun to train. The result changes at the same line on all ranks."""

    def end(self) -> None:
        """Finish the exchange after the script has ended."""


ShowLine = Callable[[str], None]  # shows the user one line

ASYNCHRONOUS = "asynchronous"  # ranks are at different steps, so each reads its own clock


@dataclass(frozen=True)
class RankConfig:
    """The configuration of a rank other than 0."""

    directory: str  # of the process group
    scratch: str
    rank: int
    size: int
    seed: int
    options: Mapping[str, str]
    script: str  # its absolute path, or "-m package.module"
    name: str  # the script as the user named it
    script_args: Sequence[str]
    folders: Sequence[str] = field(default_factory=list)  # file_order.own_folders; none: ranks are on several hosts
    parent: int = 0  # process id of the command, on its own host

    @classmethod
    def take(cls) -> "RankConfig":
        """Return the configuration of this process and remove it from the environment."""
        return cls(**json.loads(os.environ.pop(VARIABLE)))


@dataclass(frozen=True)
class ReplicatedScript:
    """A script that every rank runs.

    Attributes:
        path: Path of the user's Python file, or "-m package.module".
        args: Arguments of the script.
        seed: The run's seed.
        options: Options for the ranks.
        package: The engine's package of replicated scripts, whose `make_rank` makes the rank of a process.
    """

    path: str
    args: Sequence[str]
    seed: int
    options: Mapping[str, str]
    package: str

    def config(self, size: int) -> RankConfig:
        """Return the configuration that all `size` ranks have in common, with rank 0 and empty directories."""
        path = os.path.abspath(self.path) if module_of(self.path) is None else self.path
        return RankConfig("", "", 0, size, self.seed, self.options, path, self.path, list(self.args))

    def bound(self, size: int) -> contextlib.AbstractContextManager[None]:
        """Within the context, rank 0 of `size` keeps to its share of the cores, if the options bind ranks to cores."""
        return bound_to_share(0, size if self.options.get("bind_to") == "cores" else 1)


class InstalledRank:
    """The rank of this process; `rank` is None until the script imports TensorFlow."""

    def __init__(self, options: Mapping[str, str], show_line: ShowLine = lambda line: None) -> None:
        self._show_line = show_line
        self.rank: ReplicaRank | None = None
        self._turns = RegionHooks() if ASYNCHRONOUS in options else None  # only asynchronous runs rewrite code

    @property
    def rewrite(self) -> Rewrite | None:
        """The function that rewrites the script's code before it runs; None: the code is not rewritten."""
        return None if self._turns is None else self._turns.rewrite

    @contextlib.contextmanager
    def installed(self, package: str, group: ReplicaGroup, options: Mapping[str, str]) -> Iterator[None]:
        """Within the context, the rank's patches are applied as soon as the script imports TensorFlow or Keras.

        The rank is what `make_rank(group, options, say)` of `package` returns.
        """
        with contextlib.ExitStack() as stack, at_imports() as when:
            if self._turns is not None:
                stack.enter_context(rewritten(self._turns))

            def tensorflow(_: Any) -> None:
                if self.rank is None:
                    self.rank = importlib.import_module(package).make_rank(group, options, self._show_line)
                    if self._turns is not None:
                        self._turns.pass_on_to(self.rank.skippable_regions)
                    stack.enter_context(self.rank.in_tensorflow())

            def keras(flavor: str, _: Any) -> None:
                tensorflow(None)
                if self.rank is not None:
                    stack.enter_context(self.rank.in_keras(flavor))

            when("tensorflow", tensorflow)
            for flavor in ("keras", "tf_keras"):
                when(flavor, functools.partial(keras, flavor))
            yield

    def counts(self) -> Mapping[str, Any]:
        """Return the rank's counts; nothing before TensorFlow is imported."""
        return self.rank.counts() if self.rank is not None else {}

    def steps(self) -> int:
        return self.rank.steps() if self.rank is not None else 0

    def in_line(self) -> bool:
        return self.rank is None or self.rank.in_line()


@contextlib.contextmanager
def reported_steps(steps: Callable[[], int], reporters: Reporters) -> Iterator[None]:
    """Within the context, reporters that show training receive the number of `steps` twice a second."""
    over = threading.Event()

    def report() -> None:
        reported = 0
        while not over.wait(REPORT_S):
            with contextlib.suppress(Exception):  # the script's state of TensorFlow may prevent reads from this thread
                taken = steps()
                if taken > reported:
                    reporters.training(taken)
                    reported = taken

    if reporters.awaits_training():
        threading.Thread(target=report, daemon=True).start()
    try:
        yield
    finally:
        over.set()
