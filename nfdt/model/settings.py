"""Settings of a job that every process derives alike: its algorithm, the lanes per worker, the server's own optimizer.

A server's own optimizer is one of Keras that an algorithm runs there beside the captured one
(`AsyncAlgorithm.optimizer`).

Lanes: a worker that pushes and pulls while it computes counts as two workers for the algorithm. Each lane pulls,
computes and pushes independently; only one lane computes at a time. So the state that an algorithm keeps per worker
(pull, momentum, delay) stays correct, and the scheduler needs no code for overlap. A lane's gradient is one update
staler, because the other lane pushes in between.

A learning rate that counts its calls is refused, wherever an update is prepared, and so are results of a step that
are not numbers, wherever a step is traced.
"""

import importlib
import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import tensorflow as tf

from fdt.compat.tensorflow import func_graph
from fdt.errors import NeedsReplica, UsageError, UserError
from fdt.keras import is_of_keras
from fdt.keras.variables import inner_optimizer
from fdt.ops import flat_logs, is_number
from fdt.trainable import Trainable
from fdt.typing import Optimizer
from nfdt import algorithms
from nfdt.algorithm import AsyncAlgorithm
from nfdt.model.shards import check_splittable
from nfdt.model.variables import count_of, is_schedule, is_sgd
from nfdt.options import Options


def lanes_of(options: Options, rule: AsyncAlgorithm, workers: int, *, fed: bool) -> int:
    """Return the number of lanes per worker: 1, or 2 to overlap. Every process of a job computes the same number.

    "auto" overlaps only where this saves time. It does not overlap over shared memory (a push is one copy), with one
    worker (its gradients would become stale), or where the algorithm makes workers wait, holds pushes or drops them.

    Args:
        options: The job's options.
        rule: The algorithm.
        workers: Number of workers.
        fed: Whether the client sends the batches, in an order that two lanes would not keep.

    Raises:
        UsageError: If `--overlap on` is given for an algorithm that makes workers wait, holds pushes or drops them.
    """
    if options.overlap == "on" and (rule.waits or rule.holds):
        received = "one that waits" if rule.waits else "one that holds or drops pushes"
        raise UsageError(f"--overlap on needs an algorithm that applies each push at once. Received: {received}")
    if fed:
        return 1
    if options.overlap == "auto":
        return 2 if options.channel == "grpc" and workers > 1 and not (rule.waits or rule.holds) else 1
    return 2 if options.overlap == "on" else 1


def algorithm_name(options: Options, optimizer: Any, trainable: Sequence[Any]) -> str:
    """Return the text of the requested algorithm, or of the default one. Arguments as in `algorithm_of`."""
    return options.rule or algorithms.default_for(optimizer, trainable)


def algorithm_of(options: Options, optimizer: Any, trainable: Sequence[Any]) -> AsyncAlgorithm:
    """Return the requested algorithm, or the default one.

    Args:
        options: The job's options.
        optimizer: The captured optimizer.
        trainable: The trainable variables of the whole model.

    Raises:
        UserError: If the algorithm does not work with the optimizer.
    """
    inner = inner_optimizer(optimizer)
    name = algorithm_name(options, optimizer, trainable)
    rule = algorithms.make(name)
    if rule.needs_sgd and not is_sgd(optimizer):
        raise UserError(
            f"{name} needs SGD, because it predicts the optimizer's steps. Received: {type(inner).__name__}"
        )
    if rule.local_steps is not None:
        _check_local(inner)
    return rule


def _check_local(inner: Any) -> None:
    """Check that each worker can have its own copy of the optimizer. Raises UserError if not."""
    if getattr(inner, "use_ema", False):
        raise UserError("local steps do not support an optimizer's use_ema. Received: use_ema=True")
    if not hasattr(inner, "update_step"):
        raise UserError(f"local steps need an optimizer that is not a legacy one. Received: {type(inner).__name__}")


IGNORED = ("is_legacy_optimizer",)  # tf_keras writes it into a config, and its constructors do not take it


def server_optimizer(library: str, config: Mapping[str, Any], trainable: Sequence[Any], shards: int) -> Optimizer:
    """Return an optimizer of Keras, built for the variables of one server.

    Args:
        library: "keras" or "tf_keras", whose variables `trainable` are.
        config: {"class_name": name, "config": options}, as keras.optimizers.serialize writes it. The name may be in
            lower case; a learning rate may be the config of a schedule.
        trainable: The server's trainable variables, with their first values.
        shards: Number of servers.

    Raises:
        UserError: If the name, an option or a value is invalid, or the optimizer cannot work on this server.
    """
    optimizers = importlib.import_module(f"{library}.optimizers")
    kind = _kind(optimizers, str(config.get("class_name")))
    options = {k: v for k, v in dict(config.get("config") or {}).items() if k not in IGNORED}
    known = [p.name for p in inspect.signature(kind).parameters.values() if p.kind is not p.VAR_KEYWORD]
    for name in options:
        if name not in known:
            raise UserError(
                f"the server's {kind.__name__} has no such option; it has {', '.join(known)}. Received: {name}"
            )
    rate = options.get("learning_rate")
    if isinstance(rate, (int, float)) and not rate > 0:
        raise UserError(f"the server's {kind.__name__} must have a learning rate above 0. Received: {rate:g}")
    _try(library, lambda: kind(**_with_schedule(optimizers, options)), kind.__name__)
    optimizer = kind(**_with_schedule(optimizers, options))
    if getattr(optimizer, "use_ema", False):
        raise UserError("the server does not use the average that use_ema asks for. Received: use_ema=True")
    optimizer.build(list(trainable))
    if shards > 1:
        check_splittable(optimizer)
    return optimizer


def _kind(optimizers: Any, wanted: str) -> type:
    """Return the optimizer class of that name, in any case. Raises UserError that lists the valid names."""
    classes = [c for c in vars(optimizers).values() if inspect.isclass(c) and issubclass(c, optimizers.Optimizer)]
    known = {c.__name__: c for c in classes if "learning_rate" in inspect.signature(c).parameters}
    found = next((c for name, c in known.items() if name.lower() == wanted.lower()), None)
    if found is None:
        raise UserError(f"the server's optimizer must be one of {', '.join(sorted(known))}. Received: {wanted}")
    return found


def _with_schedule(optimizers: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `options` with a learning rate that is a schedule's config replaced by the schedule."""
    rate = options.get("learning_rate")
    return (
        {**options, "learning_rate": optimizers.schedules.deserialize(rate)} if isinstance(rate, dict) else {**options}
    )


def _try(library: str, make: Any, name: str) -> None:
    """Run one step on a variable of its own: Keras checks few values before the first step. Raises UserError."""
    keras = importlib.import_module(library)
    weights = keras.Variable([[0.0]]) if library == "keras" else importlib.import_module("tensorflow").Variable([[0.0]])
    try:
        optimizer = make()
        optimizer.build([weights])
        optimizer.apply_gradients([(weights * 0.0, weights)])
    except Exception as error:
        line = str(error).strip().partition("\n")[0]
        raise UserError(
            f"the server's {name} must have valid options. Received: {type(error).__name__}: {line}"
        ) from None


def refuse_counting_rate(optimizer: Any) -> None:
    """Refuse a learning rate that counts its calls: NFDT calls it more or less often than one machine.

    It is traced twice, which changes no variable.

    Raises:
        UserError: It assigns a variable, or its Python state after the second call is not that after the first.
    """
    inner, states = inner_optimizer(optimizer), list[str]()
    rate = getattr(inner, "_hyper", {}).get("learning_rate", getattr(inner, "_learning_rate", None))
    if not callable(rate) or hasattr(rate, "shape"):
        return
    graph, steps = func_graph.FuncGraph("rate"), [count_of(optimizer)] if is_schedule(rate) else []
    with suppress(Exception), graph.as_default():  # of the script's code, which may not be traced at all
        for _ in range(2):
            rate(*steps)
            states.append(_python_state(rate))
    if len(set(states)) > 1 or any(op.type.startswith("Assign") for op in graph.get_operations()):
        raise UserError(
            f"the learning rate {getattr(rate, '__name__', type(rate).__name__)} counts its calls, and NFDT calls it "
            "more or less often than one machine: compute it from the step, which a LearningRateSchedule receives"
        )


@tf.autograph.experimental.do_not_convert
def check_logs(trainable: Trainable, logs: Any) -> None:
    """Check what a training step of the script's own returns: workers send numbers.

    The results of a step of Keras's are metrics', which the client computes from their states where they are arrays.

    Raises:
        NeedsReplica: A result is not one number.
    """
    model = trainable.model
    if is_of_keras(trainable.flavor, model, "train_step", "compute_metrics"):
        return
    if arrays := [name for name, value in flat_logs(logs).items() if not is_number(value)]:
        reason = f"{type(model).__name__}.train_step returns {arrays[0]!r}, which is not one number"
        raise needs_replica(reason)


def needs_replica(reason: str) -> NeedsReplica:
    """Return the error of a training step that workers cannot send."""
    return NeedsReplica(f"{reason}; `--capture replica` runs the script on every worker", reason)


def _python_state(rate: Any) -> str:
    """Return the attributes of a rate and its class, and of what it calls, without tensors and variables, as text."""
    parts = [rate, *filter(callable, dict(getattr(rate, "__dict__", {})).values())]
    owners = [owner for part in parts for owner in (part, type(part))]
    held = [pair for owner in owners for pair in dict(getattr(owner, "__dict__", {})).items()]
    return repr([(name, value) for name, value in held if not tf.is_tensor(value) and not hasattr(value, "assign")])
