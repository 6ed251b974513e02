"""A program is serialized without recursion along the model's graph, and parts that cannot be serialized are named."""

import importlib
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fdt.errors import CaptureError, NeedsReplica
from fdt.keras import flavor_of, pickling
from fdt.trainable import read, write

pytestmark = pytest.mark.filterwarnings("default")
LIMIT = 1000  # Python's recursion limit by default
STACK = 256 << 10  # bytes, of 8 MB by default


def on_a_small_stack(call: Callable[[], Any]) -> Any:
    found: list[Any] = []
    before = threading.stack_size(STACK)
    try:
        thread = threading.Thread(target=lambda: found.append(call()))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    return found[0]


def built(make: Callable[[], Any]) -> Any:
    """What `make` returns: Keras itself recurses along a graph when a functional model is made."""
    assert sys.getrecursionlimit() == LIMIT
    sys.setrecursionlimit(50_000)
    try:
        return make()
    finally:
        sys.setrecursionlimit(LIMIT)


def chain(k: Any, depth: int) -> Any:
    layers = [k.layers.Activation("relu", name=f"a{i}") for i in range(depth)]
    return k.Sequential([k.layers.Input((4,)), *layers, k.layers.Dense(3)])


def residual(k: Any, depth: int) -> Any:
    x = inputs = k.Input((4,))
    shared = k.layers.Dense(4)
    for _ in range(depth // 4):
        x = k.layers.Add()([x, k.layers.Activation("tanh")(shared(x)) * 0.5])
    return k.Model(inputs, [k.layers.Dense(3)(x), x])


def nested(k: Any, depth: int) -> Any:
    x = inputs = k.Input((4,))
    for _ in range(depth // 10):
        y = start = k.Input((4,))
        for _ in range(10):
            y = k.layers.Activation("tanh")(y)
        x = k.Model(start, y)(x)
    return k.Model(inputs, k.layers.Dense(3)(x))


@pytest.mark.parametrize(
    ("name", "make", "depth"),
    [
        ("keras", chain, 2000),
        ("keras", residual, 400),
        ("keras", nested, 400),
        ("tf_keras", residual, 200),
        ("tf_keras", nested, 200),
    ],
)
def test_a_deep_model_is_captured_and_rebuilt_on_a_small_stack(name: str, make: Any, depth: int) -> None:
    keras = importlib.import_module(name)
    model = built(lambda: make(keras, depth))
    flavor = flavor_of(model)
    model.compile("sgd", "mse")

    def there_and_back() -> tuple[bytes, Any]:
        data, _ = flavor.dumps(model)
        return data, pickling.loads(data)[0]

    data, again = on_a_small_stack(there_and_back)
    assert flavor.dumps(model)[0] == data
    assert [layer.name for layer in again.layers] == [layer.name for layer in model.layers]
    write(flavor.trainable(again), read(flavor.trainable(model)))
    x = tf.constant(np.random.RandomState(0).rand(2, 4).astype("float32"))
    for here, there in zip(tf.nest.flatten(model(x)), tf.nest.flatten(again(x)), strict=True):
        assert np.array_equal(here, there)


def test_a_fit_leaves_a_deep_models_program_as_it_was() -> None:
    import keras

    model = chain(keras, 150)
    model.compile("adam", "mse", metrics=["mae"])
    flavor = flavor_of(model)
    flavor.build(model, (tf.TensorSpec([None, 4]), tf.TensorSpec([None, 3])))
    before, _ = flavor.dumps(model)
    model.fit(np.zeros((8, 4)), np.zeros((8, 3)), verbose=0)
    assert flavor.dumps(model)[0] == before


def test_what_cannot_be_pickled_in_a_deep_model_is_named_by_its_layer() -> None:
    import keras

    model = built(lambda: chain(keras, 1200))
    model.layers[700].notes = {"source": (i for i in range(3))}
    with pytest.raises(
        NeedsReplica, match=r"Activation 'a700'\.notes\['source'\] \(generator\), which cannot be pickled"
    ) as raised:
        flavor_of(model).dumps(model)
    assert not raised.value.trained


def test_what_cannot_be_pickled_in_a_class_of_the_script_is_named() -> None:
    import keras

    handle = (i for i in range(3))

    class Reading(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return x + next(handle)

    model = keras.Sequential([keras.layers.Input((4,)), Reading()])
    with pytest.raises(
        CaptureError, match=r"\(class Reading\)\.call \(variable 'handle'\) \(generator\), which cannot"
    ):
        flavor_of(model).dumps(model)


class Link:
    """An object of the script's own, the next one within."""

    def __init__(self, beyond: Any) -> None:
        self.beyond = beyond


def test_recursion_in_an_object_of_the_scripts_own_is_not_called_unpicklable() -> None:
    import keras

    model, link = chain(keras, 3), None
    for _ in range(3 * LIMIT):
        link = Link(link)
    model.layers[1].links = {"first": link}
    deep = r"Activation 'a1'\.links\['first'\] \(Link\) is nested deeper than Python's recursion limit"
    with pytest.raises(CaptureError, match=deep) as caught:
        flavor_of(model).dumps(model)
    assert not re.search("cannot be pickled", str(caught.value))
    while link is not None:  # Python frees a chain by recursion, too
        link.beyond, link = None, link.beyond


def test_a_layer_with_a_hash_of_its_own_is_whole_when_a_dict_asks_for_it() -> None:
    import keras

    class Tagged(keras.layers.Dense):
        def __hash__(self) -> int:
            return hash(self.tag)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Tagged) and self.tag == other.tag

    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            Tagged.tag = ""  # for Keras, which asks before it is set below
            self.first = Tagged(3)
            self.first.tag = "first"
            self.ranks = {self.first: 7}

        def call(self, x: Any) -> Any:
            return self.first(x)

    model = Net()
    again, _ = pickling.loads(flavor_of(model).dumps(model)[0])
    assert again.ranks[again.first] == 7 and again.first.tag == "first"


def test_equal_strings_are_equal_bytes() -> None:
    word, equal = "two words", " ".join(["two", "words"])
    assert word is not equal
    assert pickling.dumps([word, equal], ()) == pickling.dumps([word, word], ())
    assert pickling.loads(pickling.dumps([word, equal], ())[0])[0] == [word, word]


@pytest.mark.parametrize("name", ["keras", "tf_keras"])
def test_variables_that_start_as_the_same_zeros_change_alone(name: str) -> None:
    keras = importlib.import_module(name)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(4), keras.layers.Dense(4)])
    again, _ = pickling.loads(flavor_of(model).dumps(model)[0])
    first, _, second, _ = again.trainable_variables
    first.assign_add(tf.ones([4, 4]))
    assert np.all(np.asarray(first) == 1) and np.all(np.asarray(second) == 0)
