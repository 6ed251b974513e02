"""TensorLists and Optionals of a traced function, over all placements of their inputs, in float64."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from replica.placement import Shard
from tests.single.placed_execution import placements
from tests.single.placed_graphs import divided

X = np.random.default_rng(1).uniform(-1, 1, (3, 4, 5))
raw = tf.raw_ops
SHAPE = X.shape[1:]


def from_tensor(x: Any) -> Any:
    return raw.TensorListFromTensor(tensor=x, element_shape=SHAPE)


def stack(values: Any, shape: Any = SHAPE) -> Any:
    return raw.TensorListStack(input_handle=values, element_shape=shape, element_dtype=tf.float64)


def get(values: Any, index: int, shape: Any = SHAPE) -> Any:
    return raw.TensorListGetItem(input_handle=values, index=index, element_shape=shape, element_dtype=tf.float64)


def pushed(x: Any, shape: Any = SHAPE) -> Any:
    values = raw.EmptyTensorList(element_shape=shape, max_num_elements=-1, element_dtype=tf.float64)
    for item in (x[0], x[2]):
        values = raw.TensorListPushBack(input_handle=values, tensor=item)
    return values


def reserved(x: Any, shape: Any = SHAPE) -> Any:
    values = raw.TensorListReserve(element_shape=shape, num_elements=3, element_dtype=tf.float64)
    return raw.TensorListSetItem(input_handle=values, index=1, item=x[0] * 2.0)


def taken_apart(x: Any) -> Any:
    return get(from_tensor(x), 1), stack(from_tensor(x * 2.0)), raw.TensorListLength(input_handle=from_tensor(x))


def push_and_pop(x: Any) -> Any:
    rest, last = raw.TensorListPopBack(input_handle=pushed(x), element_shape=-1, element_dtype=tf.float64)
    return last, stack(rest), stack(pushed(x, -1))


def not_set(x: Any) -> Any:
    return stack(reserved(x)), get(reserved(x), 0), get(reserved(x, [-1, 5]), 2)


def changed(x: Any) -> Any:
    values = raw.TensorListSetItem(input_handle=from_tensor(x), index=0, item=tf.ones(SHAPE, tf.float64))
    longer = raw.TensorListResize(input_handle=values, size=4)
    gathered = raw.TensorListGather(
        input_handle=longer, indices=[3, 0, 0], element_shape=SHAPE, element_dtype=tf.float64
    )
    return stack(values), gathered


def scattered(x: Any) -> Any:
    values = raw.TensorListScatterV2(tensor=x, indices=[2, 0, 4], element_shape=SHAPE, num_elements=-1)
    existing = raw.TensorListScatterIntoExistingList(input_handle=from_tensor(x), tensor=x * 3.0, indices=[2, 0, 1])
    into_empty = raw.TensorListScatterIntoExistingList(input_handle=reserved(x), tensor=x, indices=[2, 0, 1])
    return stack(values), stack(existing), stack(into_empty)


def added(x: Any) -> Any:
    both = tf.add_n([from_tensor(x), reserved(x)])
    zeros = tf.zeros_like(from_tensor(x))
    return stack(both), stack(tf.add_n([zeros, from_tensor(x)])), stack(zeros)


def made_alike(x: Any) -> Any:
    shape = raw.TensorListElementShape(input_handle=from_tensor(x), shape_type=tf.int32)
    values = raw.TensorListReserve(element_shape=shape, num_elements=2, element_dtype=tf.float64)
    return shape, stack(raw.TensorListSetItem(input_handle=values, index=0, item=x[1]))


def shapes(x: Any) -> Any:
    values = raw.EmptyTensorList(element_shape=[2], max_num_elements=-1, element_dtype=tf.int32)
    values = raw.TensorListPushBack(input_handle=values, tensor=tf.shape(x[0]))
    _, shape = raw.TensorListPopBack(input_handle=values, element_shape=[2], element_dtype=tf.int32)
    return tf.reshape(x, tf.concat([[3, 1], shape], 0)), shape


def optionals(x: Any) -> Any:
    made = raw.OptionalFromValue(components=[x])
    value = raw.OptionalGetValue(optional=made, output_types=[tf.float64], output_shapes=[X.shape])
    return value[0], raw.OptionalHasValue(optional=made)


# Which operations each of them has.
CASES = {
    taken_apart: "TensorListFromTensor TensorListStack TensorListGetItem TensorListLength",
    push_and_pop: "TensorListPushBack TensorListPopBack",
    not_set: "TensorListSetItem",
    changed: "TensorListResize TensorListGather",
    scattered: "TensorListScatterV2 TensorListScatterIntoExistingList",
    added: "",
    made_alike: "",
    shapes: "",
    optionals: "OptionalFromValue OptionalGetValue OptionalHasValue",
}
OPS = frozenset(" ".join(CASES.values()).split())


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("function", CASES)
def test_lists_of_any_placement(function: Any, size: int) -> None:
    for given in placements(X, size):
        ran = divided(lambda: (tf.function(function, autograph=False), []), [X], [given], size)
        outputs = [placement for placement, _ in ran[0].emitted.outputs]
        expected = isinstance(given, Shard) and given.axis > 0
        assert not expected or (any(isinstance(p, Shard) for p in outputs) and not ran[0].group.names), given
