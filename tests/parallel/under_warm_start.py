"""Run a script as `__main__` behind a worker's fast import of TensorFlow: `under_warm_start.py SCRIPT ARGUMENT ...`"""

import importlib
import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from fdt.environment import UNUSED, hidden, lasting

if __name__ == "__main__":
    with lasting(), hidden(UNUSED):
        importlib.import_module("keras")
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
