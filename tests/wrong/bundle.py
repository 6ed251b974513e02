"""Several scripts in one process, one after another, each as `__main__`, which saves starts of TensorFlow.

`bundle.py NAME ...` prints "== NAME" before a script's output. After an error for the user it prints "!! refused:
message" and the next scripts run. After any other error it prints "!! Type: message" and ends, because the ranks of a
run are then out of step.
"""

import contextlib
import runpy
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"


def main() -> None:
    for name in sys.argv[1:]:
        print("==", name, flush=True)
        path = str(SCRIPTS / f"{name}.py")
        sys.argv = [path]
        run(path)
        forget()


def run(path: str) -> None:
    with reported(), warnings.catch_warnings():
        runpy.run_path(path, run_name="__main__")


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Print how a script ends. A `try` around the script's loops would prevent the division of their input."""
    try:
        yield
    except SystemExit as end:
        print("exit", end.code)
    except Exception as error:
        traceback.print_exc()
        names = [kind.__name__ for kind in type(error).__mro__]
        lost = str(error).startswith(("all ranks", "rank "))  # the engine's fault, not a script's that it refuses
        refused = "UserError" in names and not lost
        print("!!", f"{'refused' if refused else names[0]}:", " ".join(str(error).split()), flush=True)
        if not refused:
            sys.exit(1)


def forget() -> None:
    """Keras and TensorFlow are again as they were before a script."""
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].config.run_functions_eagerly(False)
    if "keras" in sys.modules:
        keras = sys.modules["keras"]
        keras.backend.set_floatx("float32")
        keras.backend.clear_session(free_memory=False)  # garbage is collected when it is due


main()
