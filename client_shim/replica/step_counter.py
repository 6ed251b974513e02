"""How many steps loops of the script's own have taken, told while the script runs: no `fit` says it."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from fdt.report import Reporters

LOOK_S = 0.5


@contextlib.contextmanager
def reported_steps(steps: Callable[[], int], tell: Reporters) -> Iterator[None]:
    """Within, it is said how many `steps` are taken, to whom it matters."""
    over = threading.Event()

    def look() -> None:
        told = 0
        while not over.wait(LOOK_S):
            with contextlib.suppress(Exception):  # what the script has made of TensorFlow may not let this thread read
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
