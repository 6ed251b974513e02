"""The command as a child of a Python program: `python -m frontends.child PARENT DIRECTORY ENGINE run ...`.

It ends when PARENT does, and leaves its records and its error in DIRECTORY (frontends/api.py).
"""

import importlib
import json
import os
import signal
import sys
import threading
from pathlib import Path

from fdt.report import RECORDS_VARIABLE
from fdt.shm_reaper import outlive
from frontends.api import ERROR


def main() -> None:
    """Run the command of ENGINE with the further arguments."""
    parent, directory, engine = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    sys.argv[:] = sys.argv[3:]
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    os.environ[RECORDS_VARIABLE] = str(directory)
    group = importlib.import_module(f"{engine}.cli").main
    try:
        group()
    finally:
        if group.failed is not None:
            kinds = [kind.__name__ for kind in type(group.failed).__mro__]
            failure = {"kinds": kinds, "message": " ".join(str(group.failed).split())}
            (directory / ERROR).write_text(json.dumps(failure))


def _end_with(parent: int) -> None:
    outlive(parent)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as hfdt/__main__.py does
    main()
