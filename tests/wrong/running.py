"""Runs of scripts alone and divided, in bundles; the effects of a failing script are not attributed to the next one."""

import hashlib
import importlib.metadata
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.wrong.catalogue import ALL, FIRST_IN_PROCESS, CheckedScript
from tests.wrong.catalogue import REFUSED as REFUSED_WITH
from tests.wrong.verdicts import REFUSED, SAME, Verdict, verdict

ROOT = Path(__file__).resolve().parents[2]
BUNDLE = Path(__file__).with_name("bundle.py")
KEPT = ROOT / ".cache" / "wrong"
ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1",  # tf.print and print in one order
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "CUDA_VISIBLE_DEVICES": "-1",
    "MPLBACKEND": "Agg",
}
START_S, SCRIPT_S = 60, 12
RUNS = 3  # of a script that goes wrong behind another that raised


def alone(names: Sequence[str]) -> dict[str, str]:
    """Return what each script prints under plain Python; kept in .cache/wrong for as long as the script is the same.

    Raises:
        AssertionError: a script ended with an error, or warned.
    """
    kept = {name: KEPT / f"{name}-{_digest(ALL[name])}" for name in names}
    missing = [name for name in names if not kept[name].exists()]
    if missing:
        outputs, error = bundle([sys.executable, "-W", "error::UserWarning"], missing)
        assert list(outputs) == missing and "\n!! " not in "\n".join(outputs.values()), error[-3000:]
        KEPT.mkdir(parents=True, exist_ok=True)
        for name, output in outputs.items():
            kept[name].write_text(output)
    return {name: path.read_text() for name, path in kept.items()}


def _digest(script: CheckedScript) -> str:
    versions = [importlib.metadata.version(name) for name in ("tensorflow", "keras", "numpy")]
    return hashlib.sha256(script.path.read_bytes() + " ".join(versions).encode()).hexdigest()[:12]


def command(engine: str, ranks: int, capture: str = "") -> list[str]:
    chosen = ["--capture", capture] if capture else []
    return [sys.executable, "-m", engine, "run", "-np", str(ranks), *chosen]


def divided(names: Sequence[str], engine: str, ranks: int) -> dict[str, tuple[Verdict, str]]:
    """Run scripts in bundles, one for each capture, and some by themselves; name -> verdict and output."""
    expected = alone(names)
    firsts = FIRST_IN_PROCESS.intersection(names)
    found = {name: by_itself(ALL[name], engine, ranks, expected[name]) for name in sorted(firsts)}
    for capture in ("replica", "extract"):
        waiting = [name for name in names if ALL[name].capture == capture and name not in firsts]
        runs: Counter[str] = Counter()
        while waiting:
            outputs = _one_run(command(engine, ranks, capture), waiting)
            runs.update(list(outputs))
            found |= _settled({name: (expected[name], output) for name, output in outputs.items()}, runs)
            waiting = [name for name in waiting if name not in found]
    return {name: found[name] for name in names}


def _one_run(command: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """The output of each script that was begun; "!! " and the cause if the process ended in it."""
    outputs, error = bundle(command, names)
    if len(outputs) < len(names):
        outputs = outputs or {names[0]: ""}
        name, output = list(outputs.items())[-1]
        outputs[name] = output if "!! " in output else f"{output}\n!! {_ending(error)}"
    return outputs


def _settled(outputs: dict[str, tuple[str, str]], runs: Counter[str]) -> dict[str, tuple[Verdict, str]]:
    """The verdicts to rely on: good ones, those of scripts behind none that raised, and those of a last run."""
    settled, clean = {}, True
    for name, (expected, output) in outputs.items():
        found = verdict(ALL[name], expected, output)
        words = REFUSED_WITH.get(name)
        good = found.kind == SAME or bool(words and found.kind == REFUSED and words in found.detail)
        if clean or good or runs[name] == RUNS:
            settled[name] = found, output
        clean = clean and (good or "!! " not in output)
    return settled


def by_itself(script: CheckedScript, engine: str, ranks: int, expected: str) -> tuple[Verdict, str]:
    """Run one script as a user would, the capture found by the engine."""
    ended = _run([*command(engine, ranks), str(script.path)], START_S + SCRIPT_S)
    output = ended.stdout if ended.returncode == 0 else f"{ended.stdout}\n!! {_ending(ended.stderr)}"
    return verdict(script, expected, output), output + _shares(ended.stderr)


def bundle(command: Sequence[str], names: Sequence[str]) -> tuple[dict[str, str], str]:
    """Run `names` in one process; the output of each that was begun, in order, and the standard error."""
    ended = _run([*command, str(BUNDLE), *names], START_S + SCRIPT_S * len(names))
    parts = [part.partition("\n") for part in re.split(r"^== ", ended.stdout, flags=re.MULTILINE)[1:]]
    return {name: output for name, _, output in parts}, ended.stderr


def _run(argv: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """In an empty folder and a session of its own, which is ended with it."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, **ENVIRONMENT, "PYTHONPATH": path}
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        ) as popen,
    ):  # fmt: skip
        try:
            output, error = popen.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(popen.pid, signal.SIGTERM)
            output, error = popen.communicate(timeout=30)
            error += f"\ntimed out after {seconds} s"
    return subprocess.CompletedProcess(argv, popen.returncode, output, error)


def _ending(error: str) -> str:
    """The engine's last words: its error line, marked as bundle.py marks one."""
    said = [line for line in error.strip().splitlines() if line.strip()] or ["ended without a word"]
    errors = [line for line in said if "error:" in line]
    line = errors[-1].partition("error:")[2].strip() if errors else said[-1]
    return f"refused: {line}" if errors and "rank" not in line.split(".")[0] else f"ended: {line}"


def _shares(error: str) -> str:
    return "".join(f"\n{line}" for line in error.splitlines() if "worker " in line and " step" in line)
