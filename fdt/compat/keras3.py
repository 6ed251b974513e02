"""Private names of Keras 3 on TensorFlow. tf_keras.py has the same names (APPLY, Mean, Metric, ...) for Keras 2."""

from collections.abc import Hashable, Sequence
from typing import Any

from keras.src import tree
from keras.src.backend.common import global_state
from keras.src.backend.tensorflow import random
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer as Trainer
from keras.src.backend.tensorflow.trainer import TFEpochIterator
from keras.src.losses import loss as losses
from keras.src.metrics.metric import Metric
from keras.src.metrics.reduction_metrics import Mean
from keras.src.ops.operation import Operation
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
from keras.src.random.seed_generator import global_seed_generator
from keras.src.saving.keras_saveable import KerasSaveable
from keras.src.trainers.data_adapters import array_data_adapter, array_slicing, is_grain_dataset, is_tf_dataset
from keras.src.trainers.data_adapters.array_slicing import train_validation_split
from keras.src.trainers.data_adapters.tf_dataset_adapter import make_class_weight_map_fn
from keras.src.utils import tracking
from keras.src.utils.backend_utils import DynamicBackend
from keras.src.utils.python_utils import pythonify_logs

APPLY = "apply"  # the method by which an optimizer updates variables
OPTIMIZERS: tuple[type, ...] = (BaseOptimizer, LossScaleOptimizer)


def built_for(optimizer: Any, variables: Sequence[Any]) -> list[Any]:
    """Return the variables for which the optimizer was built, in the order of its slots; they are of `variables`."""
    return list(optimizer._trainable_variables)


def variable_keys(optimizer: Any) -> frozenset[Hashable]:
    """Return keys of the variables for which the optimizer was built."""
    return frozenset(map(id, optimizer._trainable_variables))


def seed_generator() -> Any:
    """Return the generator of keras.random's unseeded operations; None where none has drawn yet."""
    return global_state.get_global_attribute("global_seed_generator")


def set_slots(optimizer: Any, slots: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Let the optimizer use tf.Variables, vectors, as its slots. Return the variables that then are its slots."""
    for slot, value in zip(slots, values, strict=True):
        vars(slot).update(_value=value, _shape=tuple(value.shape), _ndim=1)
    return list(slots)
