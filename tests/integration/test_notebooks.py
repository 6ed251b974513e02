"""The magics in a real kernel, by nbclient: cells train its model, are interrupted, and end with the kernel."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import nbclient
import nbformat
import psutil
import pytest
from nbclient.exceptions import DeadKernelError
from nbformat.v4 import new_code_cell, new_notebook

from tests.namespaces import is_alive

pytestmark = pytest.mark.timeout(600)  # on a busy machine a cell takes a minute

SETUP = """
%load_ext hfdt
%load_ext nfdt
import os
import keras, numpy as np, tensorflow as tf
os.getpid()
"""
MODEL = """
x = np.random.rand(256, 4).astype("float32")
y = x.sum(1, keepdims=True)

@tf.function
def doubled(x):
    if tf.rank(x) > 1:  # AutoGraph reads this function's source, which a worker finds in no file
        return x * 2.0
    return x

class Doubling(keras.layers.Layer):
    def call(self, x):
        return doubled(x)

model = keras.Sequential([keras.Input((4,)), Doubling(), keras.layers.Dense(1)])
model.compile("sgd", "mse")
began = lambda: keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: open({mark!r}, "w").close())
"""


class Kernel:
    """A kernel that runs cells one by one. `pid`: its process."""

    def __init__(self, client):
        self._client = client
        self.pid = int(self.run(SETUP).outputs[-1]["data"]["text/plain"])

    def run(self, source):
        cell = new_code_cell(source.strip())
        self._client.nb.cells.append(cell)
        return self._client.execute_cell(cell, len(self._client.nb.cells) - 1)

    def run_and_signal(self, source, mark, number):
        """Send `number` to the kernel when `mark` exists; return the cell (None: the kernel died) and its workers."""
        mark.unlink(missing_ok=True)
        workers = []

        def wait():
            deadline = time.monotonic() + 240
            while not mark.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            workers.extend(psutil.Process(self.pid).children(recursive=True))
            os.kill(self.pid, number)

        thread = threading.Thread(target=wait)
        thread.start()
        cell = None
        with contextlib.suppress(DeadKernelError):
            cell = self.run(source)
        thread.join()
        return cell, workers


@pytest.fixture(scope="module")
def mark(tmp_path_factory):
    return tmp_path_factory.mktemp("kernel") / "began"


@pytest.fixture(scope="module")
def kernel(mark):
    client = nbclient.NotebookClient(new_notebook(), timeout=300, kernel_name="python3", allow_errors=True)
    client.create_kernel_manager()
    with client.setup_kernel():
        found = Kernel(client)
        found.run(MODEL.format(mark=str(mark)))
        yield found


def said(cell):
    return "".join(output.get("text", "") for output in cell.outputs)


def error_of(cell):
    (found,) = [output for output in cell.outputs if output.output_type == "error"]
    return "\n".join(found.traceback)


def ended(processes):
    _, alive = psutil.wait_procs(processes, timeout=30)
    return not any(map(is_alive, alive))


def test_a_cell_trains_the_kernels_own_model(kernel, mark):
    logs = mark.parent / "logs"
    fit = "history = model.fit(x, y, batch_size=32, epochs=2)\nlen(history.history['loss'])"
    cell = kernel.run(f"%%hfdt -np 2 --log-dir {logs}\n{fit}")
    assert "Epoch 2/2 - 8 steps - " in said(cell), cell.outputs
    assert "hfdt: workers:     2" in said(cell)
    shown = [output["data"] for output in cell.outputs if "data" in output]
    assert "IntProgress" in shown[0]["text/plain"]  # the widget
    assert shown[-1]["text/plain"] == "2"
    assert said(kernel.run("print(int(model.optimizer.iterations), 'fit' in vars(keras.Model))")).startswith("16 ")
    assert psutil.Process(kernel.pid).children() == []
    about = json.loads((logs / "records.jsonl").read_text().splitlines()[0])
    assert about["command"] == ["%%hfdt", "-np", "2", "--log-dir", str(logs)]


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        ("%%hfdt -np 0\nmodel.fit(x, y)", "-np must be a number of workers, 1 or more. Received: 0"),
        ("%%hfdt --xyz\nmodel.fit(x, y)", "No such option '--xyz'."),
        ("%%hfdt 'a\nmodel.fit(x, y)", "the options cannot be read: No closing quotation. Received: 'a"),
        ("%%nfdt --detach\nmodel.fit(x, y)", "--detach is not for cells; use `nfdt run notebook.ipynb`"),
        ("%%hfdt --capture replica\nmodel.fit(x, y)", "(--capture replica): use `hfdt run notebook.ipynb`"),
        (
            "%%hfdt\nfor _ in range(2):\n    model.train_on_batch(x, y)",
            "(line 3 of the cell, train_on_batch: every rank runs the script): use `hfdt run notebook.ipynb`",
        ),
    ],
)
def test_what_a_cell_cannot_have_is_one_line(kernel, cell, line):
    shown = error_of(kernel.run(cell))
    assert shown.startswith(f"{cell[2:6]}: error: ") and shown.endswith(line)
    assert "\n" not in shown


def test_an_interrupt_ends_the_workers_and_leaves_the_kernel(kernel, mark):
    before = int(said(kernel.run("print(int(model.optimizer.iterations))")))
    fit = "%%hfdt -np 1\n\nmodel.fit(x, y, batch_size=32, epochs=10**6, callbacks=[began()])"
    cell, workers = kernel.run_and_signal(fit, mark, signal.SIGINT)
    shown = error_of(cell)
    assert "KeyboardInterrupt" in shown
    assert ", line 3" in shown and "cell_magic.py" not in shown  # the line in the cell, without our frames
    assert workers and ended(workers)
    assert int(said(kernel.run("print(int(model.optimizer.iterations))"))) > before


def test_nothing_is_left_when_the_kernel_dies_in_a_second_cell(kernel, mark, tmp_path):
    done = tmp_path / "done"
    before = int(said(kernel.run("print(int(model.optimizer.iterations))")))
    cell, workers = kernel.run_and_signal(
        "%%nfdt -np 1\nmodel.fit(x, y, batch_size=32, epochs=1, verbose=0)\n"
        f"open({str(done)!r}, 'w').write(str(model.optimizer.iterations.numpy()))\n"
        "model.fit(x, y, batch_size=32, epochs=10**6, verbose=0, callbacks=[began()])",
        mark,
        signal.SIGKILL,
    )
    assert cell is None
    assert int(done.read_text()) > before
    assert workers and ended(workers)


def test_a_notebook_runs_as_a_script(tmp_path):
    cells = [
        "%load_ext hfdt\nimport sys, keras, numpy as np, tensorflow as tf",
        MODEL.strip().format(mark=str(tmp_path / "began")),
        "%%hfdt -np 2\nhistory = model.fit(x, y, batch_size=32, epochs=int(sys.argv[1]))",
        "print('trained', len(history.history['loss']))\n\nmodel.no_such",
    ]
    path = tmp_path / "train.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(cell) for cell in cells]), path)
    command = [sys.executable, "-m", "hfdt", "run", str(path), "-np", "1", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert "Epoch 3/3 - 8 steps - " in done.stdout and "trained 3\n" in done.stdout, done.stderr
    assert done.returncode == 1
    assert f'File "{path}, cell 4", line 3, in <module>\n    model.no_such\n' in done.stderr
