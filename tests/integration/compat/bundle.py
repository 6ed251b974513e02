"""Several scripts in one process, one after another, each as `__main__`: CI needs one start instead of many."""

import runpy
import sys
from pathlib import Path

import keras

for name in sys.argv[1:]:
    path = Path(__file__).parent / "scripts" / f"{name}.py"
    print("==", name)
    sys.argv = [str(path)]
    sys.path.insert(0, str(path.parent))
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        print("exit", end.code)
    sys.path.remove(str(path.parent))
    keras.config.set_dtype_policy("float32")
