"""Models that algorithms with rounds cannot train, and the optimizer's slots that they average."""

from typing import Any

from fdt.errors import UserError
from fdt.keras.variables import inner_optimizer, tensor_variable, variables_of_slots
from hfdt.algorithm import RoundAlgorithm


def averaged_slots(rule: RoundAlgorithm, trainable: Any) -> list[Any]:
    """Return the tf.Variables of the optimizer that are averaged at a round's end: slots, without counts and rates.

    Args:
        rule: The algorithm.
        trainable: The model, a Trainable.

    Raises:
        UserError: If the algorithm does not keep a constraint of the model, or a moving average of its weights.
    """
    optimizer = inner_optimizer(trainable.model.optimizer)
    if rule.solver == "cg" and any(getattr(v, "constraint", None) is not None for v in trainable.trainable):
        raise UserError(
            "solver=cg keeps no constraints of weights; solver=optimizer does. Received: a weight with a constraint"
        )
    if not rule.slots and getattr(optimizer, "use_ema", False):
        raise UserError(
            "dane and admm do not average the optimizer's moving averages of weights. Received: use_ema=True; "
            "local_sgd averages them"
        )
    of_slots = variables_of_slots(trainable.model.optimizer, trainable.trainable)
    found = [(v, tensor_variable(v)) for v in trainable.optimizer if rule.slots]
    return [raw for v, raw in found if raw.shape.rank or id(v) in of_slots]
