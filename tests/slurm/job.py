"""Batch jobs of the tests under Slurm, and what they print."""

import contextlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.namespaces import HFDT, NFDT, until

TRAIN = """
    import sys, time
    from pathlib import Path
    import keras
    import numpy as np

    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    y = (x.sum(1) > 0).astype("int32")
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    class Waits(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            print("epoch", epoch, flush=True)
            while epoch == 2 and sys.argv[1:] and not Path(sys.argv[1]).exists():
                time.sleep(0.05)

    epochs = int(sys.argv[2]) if sys.argv[2:] else 4
    history = model.fit(x, y, batch_size=16, epochs=epochs, shuffle=False, verbose=0, callbacks=[Waits()])
    print("loss", *[f"{value:.6f}" for value in history.history["loss"]])
"""
BOTH = pytest.mark.parametrize("command", [HFDT, NFDT], ids=["hfdt", "nfdt"])


def printed_alone(directory: Path, text: str) -> str:
    (directory / "train.py").write_text(textwrap.dedent(text))
    argv = [sys.executable, directory / "train.py"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


class Job:
    """A batch job of TRAIN, or of `text`, in `directory`. `lines`: its commands, in which RUN is `hfdt run`."""

    def __init__(self, slurm, directory: Path, options: str, lines: str, command=HFDT, text=TRAIN, env=()) -> None:
        self._slurm, self.directory = slurm, directory
        self.go, self.out = directory / "go", directory / "out"
        (directory / "train.py").write_text(textwrap.dedent(text))
        body = textwrap.dedent(lines).replace("RUN", " ".join([*command, "run"]))
        (directory / "job").write_text(f"#!/bin/bash\n{body}\n")
        words = ("--parsable", f"--chdir={directory}", "--open-mode=append", "--output=out", *options.split())
        self.id = slurm.slurm("env", *env, "sbatch", *words, directory / "job").strip()

    def said(self) -> str:
        return self.out.read_text() if self.out.exists() else ""

    def field(self, name: str) -> str:
        words = self._slurm.slurm("scontrol", "show", "job", "-o", self.id).split()
        return next(word.partition("=")[2] for word in words if word.startswith(f"{name}="))

    def until_said(self, words: str, seconds: float = 200) -> None:
        def found():
            state = self.field("JobState")
            return words in self.said() or (state in ("FAILED", "CANCELLED", "COMPLETED") and pytest.fail(self.said()))

        until(found, seconds, self.said)

    def starts_again(self) -> None:
        """Slurm has it in its queue; it begins in two seconds, and not after two minutes.

        In the second in which its nodes are free again, slurmd refuses it: "Job credential revoked".
        """
        until(lambda: self.field("JobState") == "PENDING", 120, self.said)
        until(lambda: not self._slurm.left() and self._slurm.idle(), 60, self._slurm.left)  # it ends only then
        self.go.touch()
        self._slurm.slurm("scontrol", "update", f"JobId={self.id}", "StartTime=now+2")

    def ended(self, seconds: float = 200) -> str:
        """Its state at its end."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")
        return until(lambda: (s := self.field("JobState")) in over and s, seconds, self.said)


@contextlib.contextmanager
def started(argv: list[str], out: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A command whose output goes to a file. It ends with the context."""
    with open(out, "wb") as file:
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file) as running:
            try:
                yield running
            finally:  # or the end of `with` would wait for ever
                running.kill()


def losses(text: str) -> list[float]:
    (line,) = [line for line in text.splitlines() if line.startswith("loss")]
    return [float(word) for word in line.split()[1:]]


def check_losses(command, text: str, alone: list[float]) -> None:
    """HFDT has the numbers of one machine; NFDT's updates come in another order."""
    found = losses(text)
    if command is HFDT:
        assert found == pytest.approx(alone, rel=1e-4)
    assert len(found) == len(alone) and found[-1] < found[0]


def nothing_left(slurm) -> bool:
    return bool(until(lambda: not slurm.left() and slurm.idle(), 60, slurm.left))
