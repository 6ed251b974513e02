"""Type aliases for arrays and for objects of TensorFlow and Keras, which have no types of their own."""

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray  # of any shape and dtype
    Vector: TypeAlias = np.ndarray  # 1-d, of any dtype
else:  # a script that does not train need not import NumPy
    Array = Vector = Any
Tensor: TypeAlias = Any  # tf.Tensor, eager or symbolic, or a value that TensorFlow converts to one
Dataset: TypeAlias = Any  # tf.data.Dataset
Batch: TypeAlias = Any  # the argument of Keras's train_step: x, (x,), (x, y) or (x, y, sample_weight), of tensors

# Of Keras 3 or tf_keras:
Model: TypeAlias = Any
Layer: TypeAlias = Any
Optimizer: TypeAlias = Any


class Variable(Protocol):
    """A variable of Keras 3, tf_keras or TensorFlow."""

    name: str
    shape: Any
    dtype: Any

    def assign(self, value: Any) -> Any:
        """Set the value; `value` has the variable's shape."""

    def assign_add(self, value: Any) -> Any:
        """Add `value` to the value."""

    def assign_sub(self, value: Any) -> Any:
        """Subtract `value` from the value."""

    def numpy(self) -> Array:
        """Return a copy of the value."""

    def __getitem__(self, index: Any) -> Tensor: ...
