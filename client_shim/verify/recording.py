"""Activation of recording in any process that runs the script, by the environment variable of plan.py."""

import contextlib
import functools
import os
import select
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client_shim.verify.plan import PRINTED, RecordingPlan
from fdt.errors import NeedsReplica
from fdt.patches import at_imports, patched

if TYPE_CHECKING:
    from client_shim.verify.recorder import Recorder


@contextlib.contextmanager
def recorded(*, rank: int = 0, agrees: bool = False) -> Iterator[None]:
    """Within the context, this process records its steps if a comparison has started it; otherwise nothing is done.

    Files that the script writes go to a scratch folder.

    Args:
        rank: This process's rank. Ranks other than 0 write no records and have scratch folders already.
        agrees: The ranks read the same values already (client_shim/replica/agreement.py).
    """
    plan = RecordingPlan.take()
    if plan is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        if rank == 0:
            stack.enter_context(_in_scratch(plan))
        if not agrees:
            stack.enter_context(_seeded(plan.seed))
        stack.enter_context(_watched(plan, writes=rank == 0))
        try:
            yield
        except NeedsReplica:  # the run may start again in this process, and print its lines again
            os.environ.update(plan.environment())
            sys.stdout.flush()
            if rank == 0 and os.path.samestat(os.fstat(1), os.stat(plan.directory / PRINTED)):
                os.lseek(1, 0, os.SEEK_SET)
                os.ftruncate(1, 0)
            raise


@contextlib.contextmanager
def _watched(plan: RecordingPlan, *, writes: bool) -> Iterator[None]:
    """Within, a recorder receives the script's events from TensorFlow's import on; at the end the step is closed."""
    from client_shim.verify.comparable import same_world

    recorders: list[Recorder] = []
    with same_world(), contextlib.ExitStack() as stack, at_imports() as when:

        def tensorflow(_: Any) -> None:
            from client_shim.verify.hooks import of_tensorflow
            from client_shim.verify.recorder import Recorder

            if not recorders:
                recorders.append(Recorder(plan, writes=writes))
                stack.enter_context(patched(of_tensorflow(recorders[0])))

        def keras(flavor: str, _: Any) -> None:
            from client_shim.verify.hooks import of_keras

            tensorflow(None)
            stack.enter_context(patched(of_keras(recorders[0], flavor)))

        when("tensorflow", tensorflow)
        for flavor in ("keras", "tf_keras"):
            when(flavor, functools.partial(keras, flavor))
        yield
        for recorder in recorders:
            recorder.close()


def _seeded(seed: int) -> contextlib.AbstractContextManager[None]:
    """Seed whatever the script does not seed, as for the ranks of a replicated script."""
    import rich.style  # noqa: F401  its import draws from `random`, so it comes before the seed in every run

    from client_shim.replica.agreement import agreed
    from client_shim.verify.comparable import Alone

    alone: Any = Alone()
    return agreed(alone, seed, clocks=False)


@contextlib.contextmanager
def _in_scratch(plan: RecordingPlan) -> Iterator[None]:
    from client_shim.replica.scratch import diverted

    threading.Thread(target=_end_with, args=(plan,), daemon=True).start()
    with diverted(plan.scratch, Path(plan.root)):
        yield


def _end_with(plan: RecordingPlan) -> None:
    """End this process and remove the comparison's files when the comparison has been killed."""
    from client_shim.replica.scratch import real_paths

    try:
        living = os.pidfd_open(plan.parent)
    except (OSError, AttributeError):  # some Pythons and sandboxes have no pidfd_open
        return
    select.select([living], [], [])
    with real_paths():
        shutil.rmtree(plan.root, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)
