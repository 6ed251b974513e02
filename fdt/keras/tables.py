"""Pickling of lookup tables, as text layers have them: their keys and values are inserted into a new table."""

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import lookup_ops


def reduce_table(obj: Any) -> Any:
    """Return the reduction of a table; NotImplemented for other objects and rarer kinds of tables."""
    if isinstance(obj, lookup_ops.StaticHashTable):
        return _static, _contents(obj)
    if isinstance(obj, lookup_ops.MutableHashTable):
        return _mutable, _contents(obj)
    return NotImplemented


def _contents(table: Any) -> tuple[str, str, Any, Any, Any]:
    keys, values = table.export()
    order = np.argsort(keys.numpy(), kind="stable")  # a table has no order; equal contents must be equal bytes
    default = table._default_value.numpy()
    return table.key_dtype.name, table.value_dtype.name, default, keys.numpy()[order], values.numpy()[order]


def _static(key_dtype: str, value_dtype: str, default: Any, keys: Any, values: Any) -> Any:
    with tf.init_scope():
        contents = tf.lookup.KeyValueTensorInitializer(tf.constant(keys, key_dtype), tf.constant(values, value_dtype))
        return tf.lookup.StaticHashTable(contents, tf.constant(default, value_dtype))


def _mutable(key_dtype: str, value_dtype: str, default: Any, keys: Any, values: Any) -> Any:
    with tf.init_scope():
        table = tf.lookup.experimental.MutableHashTable(key_dtype, value_dtype, tf.constant(default, value_dtype))
        table.insert(tf.constant(keys, key_dtype), tf.constant(values, value_dtype))
        return table
