"""Private names of tf_keras, which is Keras 2. keras3.py has the same names (APPLY, Mean, Metric, ...) for Keras 3."""

from collections.abc import Hashable, Sequence
from typing import Any

from tf_keras.src.backend import ContextValueCache
from tf_keras.src.engine import data_adapter, functional, node, training_utils
from tf_keras.src.engine.data_adapter import _make_class_weight_map_fn as make_class_weight_map_fn
from tf_keras.src.engine.data_adapter import train_validation_split
from tf_keras.src.engine.training import Model as Trainer
from tf_keras.src.layers.core import tf_op_layer
from tf_keras.src.metrics.base_metric import Mean, Metric
from tf_keras.src.mixed_precision import autocast_variable
from tf_keras.src.mixed_precision.loss_scale_optimizer import LossScaleOptimizer, LossScaleOptimizerV3
from tf_keras.src.optimizers.legacy import optimizer_v2
from tf_keras.src.optimizers.optimizer import Optimizer
from tf_keras.src.utils import losses_utils as losses
from tf_keras.src.utils import tf_utils

APPLY = "apply_gradients"  # the method by which an optimizer updates variables
OPTIMIZERS: tuple[type, ...] = (Optimizer, optimizer_v2.OptimizerV2, LossScaleOptimizer, LossScaleOptimizerV3)


def built_for(optimizer: Any, variables: Sequence[Any]) -> list[Any]:
    """Return the variables for which the optimizer was built, in the order of its slots; None: not of `variables`."""
    keyed = {optimizer._var_key(v): v for v in variables}
    places: dict[Any, int] = getattr(optimizer, "_index_dict", {})
    return [keyed.get(key) for key in sorted(places, key=lambda key: places[key])]


def variable_keys(optimizer: Any) -> frozenset[Hashable]:
    """Return keys of the variables for which the optimizer was built; of a legacy optimizer none."""
    return frozenset(getattr(optimizer, "_index_dict", ()))


def set_slots(optimizer: Any, slots: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Let the optimizer use tf.Variables, vectors, as its slots. Return the variables that then are its slots."""
    replaced = {id(slot): value for slot, value in zip(slots, values, strict=True)}
    for held in vars(optimizer).values():
        for place, variable in enumerate(held) if isinstance(held, list) else ():
            if id(variable) in replaced:
                held[place] = replaced[id(variable)]
    return list(values)
