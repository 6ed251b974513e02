"""Summary of a job for reporters, made before the job starts."""

import math
from typing import Any

from client_shim.job import CapturedFit
from fdt.job import ArrayData, Data, GraphData
from fdt.report import JobSummary


def summarize(fit: CapturedFit, steps: int) -> JobSummary:
    """Return the numbers of the job of `fit`; `steps` is the number of steps an epoch, 0 if unknown."""
    call, captured, job, variables = fit.call, fit.captured, fit.job, fit.trainable.trainable
    arguments = call.arguments
    return JobSummary(
        job=job.id,
        engine=fit.run.engine,
        workers=fit.run.client.hello.workers,
        model=call.model.name,
        parameters=sum(map(_size, variables)),
        gradient_bytes=sum(_size(v) * _itemsize(v) for v in variables),
        state_bytes=job.state.model.nbytes + job.state.optimizer.nbytes,
        loss=_name(getattr(call.model, "loss", None)),
        optimizer=type(call.model.optimizer).__name__ if call.model.optimizer is not None else "",
        data=_kind(captured.train),
        data_bytes=captured.facts.nbytes,
        samples=captured.facts.rows or 0,
        batch_size=captured.facts.batch or 0,
        steps_per_epoch=steps or captured.facts.steps or 0,
        epochs=arguments["epochs"],
        initial_epoch=arguments["initial_epoch"] or 0,
        validation=captured.validation_data is not None,
        verbose=1 if arguments["verbose"] == "auto" else int(arguments["verbose"]),
        options=job.options,
    )


def _size(variable: Any) -> int:
    return math.prod(map(int, variable.shape))


def dtype_name(variable: Any) -> str:
    """Return the name of a variable's dtype, of Keras or of TensorFlow."""
    import tensorflow as tf

    return str(tf.as_dtype(variable.dtype).name)


def _itemsize(variable: Any) -> int:
    import tensorflow as tf

    return int(tf.as_dtype(variable.dtype).size)


def _name(loss: Any) -> str:
    if loss is None or isinstance(loss, str):
        return loss or ""
    if isinstance(loss, (list, tuple)):
        return ", ".join(map(_name, loss))
    if isinstance(loss, dict):
        return ", ".join(f"{key}: {_name(value)}" for key, value in loss.items())
    return str(getattr(loss, "name", None) or getattr(loss, "__name__", type(loss).__name__))


def _kind(data: Data) -> str:
    return "arrays" if isinstance(data, ArrayData) else "graph" if isinstance(data, GraphData) else "feed"
