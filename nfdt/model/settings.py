"""Settings of a job that every process derives alike: the algorithm, and the number of lanes per worker.

Lanes: a worker that pushes and pulls while it computes counts as two workers for the algorithm. Each lane pulls,
computes and pushes independently; only one lane computes at a time. So the state that an algorithm keeps per worker
(pull, momentum, delay) stays correct, and the scheduler needs no code for overlap. A lane's gradient is one update
staler, because the other lane pushes in between.
"""

from collections.abc import Sequence
from typing import Any

from fdt.errors import UsageError, UserError
from fdt.keras.variables import inner_optimizer
from nfdt import algorithm_registry
from nfdt.algorithm import AsyncAlgorithm
from nfdt.model.variables import is_sgd
from nfdt.options import Options


def lanes_of(options: Options, rule: AsyncAlgorithm, workers: int, *, fed: bool) -> int:
    """Return the number of lanes per worker: 1, or 2 to overlap. Every process of a job computes the same number.

    "auto" overlaps only where this saves time. It does not overlap over shared memory (a push is one copy), with one
    worker (its gradients would become stale), or where the algorithm makes workers wait.

    Args:
        options: The job's options.
        rule: The algorithm.
        workers: Number of workers.
        fed: Whether the client sends the batches, in an order that two lanes would not keep.

    Raises:
        UsageError: If `--overlap on` is given for an algorithm that makes workers wait.
    """
    if options.overlap == "on" and rule.waits:
        raise UsageError("--overlap on needs a rule that does not wait for other workers. Received: one that waits")
    if fed:
        return 1
    if options.overlap == "auto":
        return 2 if options.channel == "grpc" and workers > 1 and not rule.waits else 1
    return 2 if options.overlap == "on" else 1


def rule_of(options: Options, optimizer: Any, trainable: Sequence[Any]) -> AsyncAlgorithm:
    """Return the requested algorithm, or the default one.

    Args:
        options: The job's options.
        optimizer: The captured optimizer.
        trainable: The trainable variables of the whole model.

    Raises:
        UserError: If the algorithm does not work with the optimizer.
    """
    inner = inner_optimizer(optimizer)
    name = options.rule or algorithm_registry.default_for(optimizer, trainable)
    rule = algorithm_registry.make(name)
    if rule.needs_sgd and not is_sgd(optimizer):
        raise UserError(
            f"rule {name} needs SGD, because it predicts the optimizer's steps. Received: {type(inner).__name__}"
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
