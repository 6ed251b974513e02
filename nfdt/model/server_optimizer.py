"""Keras optimizers that an algorithm runs on the server, beside the captured one (`AsyncAlgorithm.optimizer`)."""

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from fdt.errors import UserError
from fdt.typing import Optimizer
from nfdt.model.shards import check_splittable

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
