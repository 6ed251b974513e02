"""Which methods of which Keras classes a rank replaces. `rank`: nfdt/replica/rank.py's."""

from typing import Any

from client_shim.replica.replacing import Replacement


def patches_of_keras3(rank: Any) -> list[Replacement]:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from keras.src.metrics.metric import Metric
    from keras.src.optimizers.base_optimizer import BaseOptimizer
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

    return [
        Replacement(BaseOptimizer, "apply", rank.apply),
        Replacement(LossScaleOptimizer, "apply", rank.apply),
        Replacement(Metric, "__init__", rank.metrics.made),
        Replacement(TensorFlowTrainer, "train_on_batch", rank.train_on_batch),
        Replacement(TensorFlowTrainer, "fit", rank.fit),
    ]


def patches_of_tf_keras(rank: Any) -> list[Replacement]:
    from tf_keras.src.engine.training import Model
    from tf_keras.src.metrics.base_metric import Metric
    from tf_keras.src.optimizers.legacy.optimizer_v2 import OptimizerV2
    from tf_keras.src.optimizers.optimizer import Optimizer

    return [
        Replacement(Optimizer, "apply_gradients", rank.apply_gradients),
        Replacement(OptimizerV2, "apply_gradients", rank.apply_gradients),
        Replacement(Metric, "__init__", rank.metrics.made),
        Replacement(Model, "train_on_batch", rank.train_on_batch),
        Replacement(Model, "fit", rank.fit),
    ]
