"""Progress thread of a replicated script: it reports the number of steps while the script runs."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from fdt.report import Reporters

LOOK_S = 0.5


@contextlib.contextmanager
def reported_steps(steps: Callable[[], int], tell: Reporters) -> Iterator[None]:
    """Within, reporters that show training receive the number of `steps` twice a second."""
    over = threading.Event()

    def look() -> None:
        told = 0
        while not over.wait(LOOK_S):
            with contextlib.suppress(Exception):  # the script's state of TensorFlow may prevent reads from this thread
                taken = steps()
                if taken > told:
                    tell.training(taken)
                    told = taken

    if tell.awaits_training():
        threading.Thread(target=look, daemon=True).start()
    try:
        yield
    finally:
        over.set()
