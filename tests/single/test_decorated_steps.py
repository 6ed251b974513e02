"""Steps of a model that are tf.functions: a worker traces their Python, so that it can read the step's gradients."""

import pytest
import tensorflow as tf

from fdt.keras.variables import undecorate_steps


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_a_decorated_step_is_traced_into_the_callers_graph(library):
    keras = pytest.importorskip(library)
    made = []

    class Branches(keras.Model):
        @tf.function(jit_compile=True)
        def train_step(self, data):
            total = tf.reduce_sum(data)
            made.append(total)
            if total > 3:  # AutoGraph converts it
                total = -total
            return total

    model = Branches()
    of_keras = model.test_step
    undecorate_steps(model)
    step = tf.function(lambda data: model.train_step(data), autograph=False)
    assert [float(step(tf.constant([1.0, x]))) for x in (1.0, 5.0)] == [2.0, -6.0]
    assert made[0].graph is step.get_concrete_function(tf.TensorSpec([2])).graph
    assert model.test_step == of_keras


def test_a_step_of_the_instance_is_called_without_the_model_and_converted_only_where_it_was():
    class Own(tf.keras.Model):
        def train_step(self, data):
            return data + 1.0 if tf.executing_eagerly() else data

        @tf.function(autograph=False)
        def test_step(self, data):
            return isinstance(self, Own), data

    model = Own()
    model.train_step = tf.function(model.train_step)
    undecorate_steps(model)
    assert float(model.train_step(tf.constant(1.0))) == 2.0
    assert model.test_step.__func__ is Own.test_step.python_function and model.test_step(1.0) == (True, 1.0)
