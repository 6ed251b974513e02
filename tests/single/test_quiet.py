import subprocess
import sys

SCRIPT = """
import os, sys, types
from fdt import environment

with environment.without_chatter():
    os.write(2, b"I0000 00:00:1.2 99 port.cc:153] oneDNN custom operations are on.\\n")
    print("a warning of the user's own", file=sys.stderr)
    os.write(2, b"To enable the following instructions: AVX2\\n")
print("after", file=sys.stderr)
"""


def test_chatter_is_held_back_and_everything_else_passed_on():
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stderr.splitlines() == ["a warning of the user's own", "after"]


def test_tensorflow_is_imported_in_silence():
    script = (
        "import os; from fdt import environment; os.environ.update(environment.variables())\n"
        "with environment.quiet_import():\n    import tensorflow as tf\ntf.constant(1) + 1"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert ended.stderr == ""
