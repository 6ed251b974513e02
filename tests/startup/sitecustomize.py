"""For the processes that tests start (conftest.py): a cheaper import of TensorFlow and Keras.

Keras imports plotting packages and the like if they are installed. They are hidden from it, as from workers, and the
import is not scanned for garbage: 1.7 s of CPU a process instead of 4.1 (measured). A script can import them itself.
Later garbage is collected less often than by default: graphs are many small objects, and scanning them took 8 % of a
process's time. `make compat` runs scripts without this.
"""

import gc
import importlib.abc
import importlib.util
import runpy
import sys
from pathlib import Path


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self):
        self._waiting = {"tensorflow", "keras", "tf_keras"}

    def find_spec(self, name, path, target=None):
        if name not in self._waiting:
            return None
        self._waiting.remove(name)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _cheaply(spec.loader.exec_module)
        return spec


def _cheaply(exec_module):
    from fdt.environment import UNUSED, hidden, lasting

    def wrapper(module):
        with lasting(), hidden(UNUSED):
            exec_module(module)

    return wrapper


gc.set_threshold(20_000, 20, 50)
sys.meta_path.insert(0, _Finder())
others = [Path(folder, "sitecustomize.py") for folder in sys.path if Path(folder) != Path(__file__).parent]
for other in filter(Path.is_file, others):  # the one that this one stands before
    runpy.run_path(str(other))
    break
