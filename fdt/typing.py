"""Types of arrays, and of TensorFlow's and Keras's objects, whose libraries carry no types or say Any in more words."""

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray  # of any shape and dtype
Vector: TypeAlias = np.ndarray  # 1-d, of any dtype
Tensor: TypeAlias = Any  # tf.Tensor, eager or symbolic, or a value that TensorFlow converts to one
Dataset: TypeAlias = Any  # tf.data.Dataset
Batch: TypeAlias = Any  # the argument of Keras's train_step: x, (x,), (x, y) or (x, y, sample_weight), of tensors

# Of Keras 3 or tf_keras.
Variable: TypeAlias = Any  # or tf.Variable: has .shape, .assign, .name
Model: TypeAlias = Any
Layer: TypeAlias = Any
Optimizer: TypeAlias = Any
