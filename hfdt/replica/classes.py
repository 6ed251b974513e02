"""Which methods of which Keras classes a rank replaces. `rank`: hfdt/replica/rank.py's."""

from typing import Any

from hfdt.patches import Patch


def patches_of_keras3(rank: Any) -> list[Patch]:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from keras.src.layers.normalization.batch_normalization import BatchNormalization
    from keras.src.metrics.metric import Metric
    from keras.src.optimizers.base_optimizer import BaseOptimizer
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

    return [
        Patch(BaseOptimizer, "apply", rank.apply),
        Patch(LossScaleOptimizer, "apply", rank.apply),
        Patch(Metric, "__init__", rank.metrics.made),
        Patch(BatchNormalization, "call", rank.batch_norm),
        Patch(TensorFlowTrainer, "train_on_batch", rank.train_on_batch),
        Patch(TensorFlowTrainer, "fit", rank.fit),
        *rank.rows.patches_of_keras(),
    ]


def patches_of_tf_keras(rank: Any) -> list[Patch]:
    from tf_keras.src.engine.training import Model
    from tf_keras.src.layers.normalization.batch_normalization import BatchNormalizationBase
    from tf_keras.src.metrics.base_metric import Metric
    from tf_keras.src.mixed_precision.loss_scale_optimizer import LossScaleOptimizer, LossScaleOptimizerV3
    from tf_keras.src.optimizers.legacy.optimizer_v2 import OptimizerV2
    from tf_keras.src.optimizers.optimizer import Optimizer

    return [
        *(
            Patch(kind, "apply_gradients", rank.apply_gradients)
            for kind in (Optimizer, OptimizerV2, LossScaleOptimizer, LossScaleOptimizerV3)
        ),
        Patch(Metric, "__init__", rank.metrics.made),
        Patch(BatchNormalizationBase, "call", rank.batch_norm),
        Patch(Model, "train_on_batch", rank.train_on_batch),
        Patch(Model, "fit", rank.fit),
    ]
