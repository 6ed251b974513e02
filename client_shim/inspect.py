"""The `inspect` command: run a script up to its first `fit` and print what that `fit` would send, without training.

Bytes are counted exactly. The time of a step is measured on one real batch, and its changes of the model are undone.
The speeds of links are assumptions, and the output names them as such.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from client_shim.fit import fit_remotely
from client_shim.imports import intercepted
from client_shim.inspection import CostReport, Inspection, report
from client_shim.job import CapturedFit
from client_shim.replica.detection import CaptureDetection, detect_capture, several_optimizers, with_own_updates
from client_shim.script import run_script
from client_shim.state import ScriptRun, Settings
from client_shim.summary import dtype_name, summarize
from fdt.blobs import LocalBlobs
from fdt.job import FeedData
from fdt.report import JobSummary, Reporters, Screen, quantity
from fdt.rpc.training_pb2 import HelloReply
from fdt.trainable import Trainable

Show = Callable[[CaptureDetection, "Inspection | None"], None]
Sizes = Callable[[Sequence[tuple[tuple[int, ...], str]]], Mapping[str, Sequence[int]]]
# of the `fit`, its numbers, and bytes by compressor
ReportCost = Callable[[CapturedFit, JobSummary, Mapping[str, Sequence[int]]], "CostReport"]
Examine = Callable[[CapturedFit], Inspection]
RUNS, RUN_S, MOST_S = 20, 0.03, 5.0  # measured runs, how long one should last (short ones meet no other load), and all


class _Seen(BaseException):
    """Raised when the script reaches its first `fit`; a BaseException, so that `except Exception` does not stop it."""


def inspect(
    script: str,
    script_args: Sequence[str],
    engine: str,
    workers: int,
    settings: Settings,
    sizes: Sizes = lambda specs: {},
    cost: ReportCost | None = None,
    show: Show | None = None,
) -> int:
    """Run `script` up to its first `fit` and print what that would send.

    A script with training loops of its own is not run, because nothing would be sent. For both kinds of script the
    capture of each training call is printed, with its reason.

    Args:
        script: Path of the user's Python file.
        script_args: Arguments of the script.
        engine: "hfdt" or "nfdt".
        workers: The number of workers.
        settings: The command line's decisions about capture.
        sizes: Returns the bytes of each compressor for trainable variables of these specs.
        cost: Measures what a run costs; None: only what one step in this process shows is printed.
        show: Receives what was found, in place of being printed; None for the inspection where nothing would be sent.

    Returns:
        The exit code: 0, or the script's own.

    Raises:
        UserError: `fit` cannot be captured.
    """
    detected = with_own_updates(detect_capture(script), divides=engine == "hfdt")
    own_loop = detected.capture == "replica" or (engine == "nfdt" and several_optimizers(detected))
    examined = functools.partial(examine, sizes=sizes, cost=cost)
    found, code = (None, 0) if own_loop else _first_fit(script, script_args, engine, workers, settings, examined)
    if found is None and code:
        return code
    show = show or functools.partial(_print, script, engine, workers, own_loop)
    show(detected, found)
    return 0


def _print(
    script: str, engine: str, workers: int, own_loop: bool, detected: CaptureDetection, found: Inspection | None
) -> None:
    if found is not None:
        print(*detected.findings, *report(found), sep="\n")
    elif own_loop:
        print(*detected.findings, *replicas(detected, engine, workers), sep="\n")
    else:
        print(f"{engine}: {script} does not call `fit`: nothing would be sent")


def _first_fit(
    script: str, script_args: Sequence[str], engine: str, workers: int, settings: Settings, examined: Examine
) -> tuple[Inspection | None, int]:
    """Run the script up to its first `fit`; return that, None where there is none, and the script's exit code."""
    found: list[Inspection] = []
    blobs = LocalBlobs.create()

    def instead(fit: CapturedFit) -> None:
        found.append(examined(fit))
        raise _Seen

    client = SimpleNamespace(blobs=blobs, hello=HelloReply(engine=engine, workers=workers))
    run = ScriptRun(client, settings, Reporters([Screen(engine, adds_steps=False)]), instead=instead)
    try:
        with intercepted(lambda *args: _stopping(run, *args)):
            code = run_script(script, script_args)
    finally:
        blobs.close()
    return (found[0] if found else None), code


def replicas(detected: CaptureDetection, engine: str, workers: int) -> list[str]:
    """Return lines on how the ranks of a script with training loops of its own divide its batches."""
    lines = [
        f"capture:    replica: on {quantity(workers, 'rank')}, each of which runs the script; this process is rank 0",
        f"batches:    {_SHARE[engine]}",
        *([f"cost:       {_NO_COST}", f"input:      {_MAPS}"] if engine == "hfdt" else []),
    ]
    if detected.capture != "replica":
        lines.append("optimizers: the model's train_step uses several, so every rank runs Keras's fit")
    if detected.uses_sessions:
        lines.append(
            f"sessions:   {_SESSIONS[engine]}; a run that cannot be divided like this raises an error before it trains"
        )
    return lines


_SHARE = {"hfdt": "each rank takes a part of every batch", "nfdt": "ranks take whole batches in turn"}
_NO_COST = "not estimated: a step of a training loop of the script's own cannot be run without the loop"
_MAPS = "each rank runs pure maps before `batch` on its own rows alone; the run's end names them, or the obstacle"
_SESSIONS = {
    "hfdt": "runs that compute gradients are divided by the rows of the fed batch; gradients are summed inside the run",
    "nfdt": "ranks take runs that compute gradients and change variables in turn; rank 0's session holds the variables",
}


def _stopping(run: ScriptRun, *args: Any) -> Any:
    """Run `fit` under `run`; after the inspection raise SystemExit, which the script's error handlers ignore."""
    try:
        return fit_remotely(run, *args)
    except _Seen:
        raise SystemExit(0) from None


def examine(fit: CapturedFit, sizes: Sizes, cost: ReportCost | None) -> Inspection:
    """Return the numbers of a captured `fit`; see `inspect`. A step is timed where nothing else measures the cost."""
    step_s = None
    if cost is None and not isinstance(fit.job.data, FeedData):
        step_s = time_step(fit.call.model, fit.trainable, first_batch(fit))
    summary, facts = summarize(fit, 0), fit.captured.facts
    compressed = sizes([(tuple(map(int, v.shape)), dtype_name(v)) for v in fit.trainable.trainable])
    asked = None if cost is None else cost(fit, summary, compressed)
    return Inspection(summary, facts.note, step_s, mapped=facts.mapped, compressed=compressed, cost=asked)


def first_batch(fit: CapturedFit) -> Any:
    """Return the first training batch of a captured `fit`, which workers read by themselves."""
    from fdt.data import open_source  # imports TensorFlow, which the script has loaded by now

    job, flavor = fit.job, fit.call.flavor.name
    return open_source(job.data, job.fit, fit.run.blobs, job.seed, training=True, flavor=flavor).first_batch()


def time_step(model: Any, trainable: Trainable, batch: Any) -> float:
    """Return seconds of the model's own compiled training step on `batch`; the variables are restored afterwards."""
    step = compiled_step(model)
    with trainable.restored():
        return fastest(functools.partial(step, batch))


def compiled_step(model: Any) -> Any:
    """Return the model's training step as a function that is compiled as in `fit`."""
    import tensorflow as tf

    return tf.function(model.train_step, jit_compile=bool(model.jit_compile))


def fastest(call: Callable[[], Any]) -> float:
    """Return the seconds of a call, in the fastest of some runs; the first call is not measured, because it traces."""
    _wait(call())
    begin = time.perf_counter()
    _wait(call())
    count = max(1, round(RUN_S / max(1e-6, time.perf_counter() - begin)))
    times: list[float] = []
    while len(times) < RUNS and sum(times) * count < MOST_S:
        begin = time.perf_counter()
        for _ in range(count):
            result = call()
        _wait(result)
        times.append((time.perf_counter() - begin) / count)
    return min(times)


def _wait(result: Any) -> None:
    """Wait for a device to compute `result`."""
    import tensorflow as tf

    for leaf in tf.nest.flatten(result, expand_composites=True):
        with contextlib.suppress(AttributeError):  # no tensor
            leaf.numpy()
