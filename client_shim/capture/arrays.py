"""Extraction of the arrays that Keras's own array adapters would give to a model.

Keras checks them, casts floats to floatx, folds `class_weight` into sample weights and packs (x, y, sample_weight). The
result goes to shared memory once. So the dtypes and shapes in workers are the same as in an undivided run.
"""

from typing import Any

import numpy as np

from fdt import compat
from fdt.typing import Array

DEFAULT_BATCH = 32  # Keras's default


def traced_spec(spec: Any, rows: int, batch: int) -> Any:
    """Return the TypeSpecs of a batch for which Keras traces a step: its rows are fixed where all batches are full."""
    import tensorflow as tf

    def fixed(each: Any) -> Any:
        return tf.TensorSpec([batch, *each.shape[1:]], each.dtype) if isinstance(each, tf.TensorSpec) else each

    return spec if rows % batch else tf.nest.map_structure(fixed, spec)


def can_take(flavor: str, x: Any, y: Any, sample_weight: Any) -> bool:
    """Return whether Keras's array adapter accepts these arguments."""
    if flavor == "keras":
        from fdt.compat.keras3 import array_data_adapter, is_grain_dataset, is_tf_dataset

        if is_tf_dataset(x) or is_grain_dataset(x):
            return False
        return bool(array_data_adapter.can_convert_arrays((x, y, sample_weight)))
    from fdt.compat.tf_keras import data_adapter as adapters

    dense = (adapters.TensorLikeDataAdapter, adapters.GenericArrayLikeDataAdapter, adapters.ListsOfScalarsDataAdapter)
    composite = adapters.CompositeTensorDataAdapter
    return any(a.can_handle(x, y) for a in (*dense, composite))


def element(flavor: str, x: Any, y: Any, sample_weight: Any, class_weight: dict[int, float] | None) -> Any:
    """Return the packed structure of arrays that Keras slices its batches from; axis 0 is rows.

    Raises Keras's own errors.
    """
    take = _keras if flavor == "keras" else _tf_keras
    return _map(_plain, take(x, y, sample_weight, class_weight))


def split(flavor: str, arrays: Any, fraction: float) -> tuple[Any, Any]:
    """Return (training, validation) parts of (x, y, sample_weight), split by Keras's own function.

    The last part validates.

    Args:
        flavor: "keras" or "tf_keras".
        arrays: The structure (x, y, sample_weight).
        fraction: The part of the rows that validates, in 0..1.
    """
    train, validation = compat.of(flavor).train_validation_split(arrays, validation_split=fraction)
    return train, validation


def _keras(x: Any, y: Any, sample_weight: Any, class_weight: dict[int, float] | None) -> Any:
    from fdt.compat.keras3 import array_data_adapter, array_slicing, tree

    adapter = array_data_adapter.ArrayDataAdapter(x, y, sample_weight=sample_weight, class_weight=class_weight)
    return tree.lists_to_tuples(array_slicing.convert_to_sliceable(adapter._inputs, target_backend="tensorflow"))


def _tf_keras(x: Any, y: Any, sample_weight: Any, class_weight: dict[int, float] | None) -> Any:
    from fdt.compat.tf_keras import data_adapter as adapters
    from fdt.compat.tf_keras import training_utils

    kind = adapters.select_data_adapter(x, y)
    if kind is adapters.ListsOfScalarsDataAdapter:
        x, y, sample_weight = (None if v is None else np.asarray(v) for v in (x, y, sample_weight))
    x, y, sample_weight = adapters._process_tensorlike((x, y, sample_weight))
    weights, _, _ = training_utils.handle_partial_sample_weights(y, sample_weight, None, check_all_flat=True)
    packed = adapters.pack_x_y_sample_weight(x, y, weights)
    adapters._check_data_cardinality(packed)
    if not class_weight:
        return packed
    return adapters._make_class_weight_map_fn(class_weight)(*packed)


def are_sparse(value: Any) -> bool:
    """Return whether a sparse or ragged tensor or matrix is among the leaves of `value`."""
    return any(_is_sparse(leaf) for leaf in _leaves(value))


def batch_size(given: int | None, rows: int, steps: int | None) -> int:
    """Return the size of `fit`'s batches, as both Keras choose it where none is given."""
    return given or (-(-rows // steps) if steps else DEFAULT_BATCH)


def is_shuffled(flavor: str, shuffle: Any) -> bool:
    """Return whether workers shuffle all rows. By "batch", Keras 3 keeps the rows of a batch together."""
    return bool(shuffle) and not (flavor == "keras" and shuffle == "batch")


def as_dataset(
    flavor: str, x: Any, y: Any, sample_weight: Any, batch: int | None, steps: int | None, *, shuffle: Any
) -> Any:
    """Return sparse and ragged rows as a tf.data pipeline of batches.

    Their rows are not slices of one memory block, so workers cannot read them as arrays.
    """
    import tensorflow as tf

    from fdt.data.division import shuffled

    given = (x,) if y is None else (x, y) if sample_weight is None else (x, y, sample_weight)
    rows = tf.data.Dataset.from_tensor_slices(_map(_tensor, given) if len(given) > 1 else _map(_tensor, x))
    count = int(rows.cardinality())
    if is_shuffled(flavor, shuffle):  # tf_keras's own shuffle draws a seed from the script's generator
        rows = rows.shuffle(max(count, 1)) if flavor == "tf_keras" else shuffled(rows, max(count, 1))
    batches = rows.batch(batch_size(batch, count, steps))
    return batches.take(steps) if steps and flavor == "tf_keras" else batches  # which begins each epoch anew


def _is_sparse(leaf: Any) -> bool:
    return any(hasattr(leaf, name) for name in ("dense_shape", "row_splits", "tocoo"))


def _tensor(leaf: Any) -> Any:
    """Return a leaf that TensorFlow can slice: SciPy's matrices as sparse tensors, floats as floatx."""
    if not hasattr(leaf, "tocoo"):
        return leaf if _is_sparse(leaf) else _floats(np.asarray(leaf))
    import tensorflow as tf

    found = leaf.tocoo()
    indices = np.stack([found.row, found.col], axis=1).astype(np.int64)
    return tf.sparse.reorder(tf.SparseTensor(indices, _floats(found.data), found.shape))


def _floats(array: Array) -> Array:
    import tensorflow as tf

    return array.astype(tf.keras.backend.floatx()) if array.dtype.kind == "f" else array


def _plain(value: Any) -> Array:
    array = np.asarray(value)
    if array.dtype.kind == "O":  # strings; for other objects TensorFlow raises its own error
        import tensorflow as tf

        return np.asarray(tf.convert_to_tensor(array).numpy())
    return array


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _leaves(item)]
    return [] if value is None else [value]


def _map(function: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _map(function, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(_map(function, item) for item in value)
    return None if value is None else function(value)
