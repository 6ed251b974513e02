"""Losses composed at random of operations of the rule table: loss, gradients, updated weights equal one machine's."""

import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from replica.placement import Shard, divided
from tests.single import placed_graphs
from tests.wrong.losses import arrays, composed


@settings(derandomize=True, max_examples=25, deadline=None, database=None)
@given(composed(), st.integers(2, 9), st.sampled_from([2, 3]), st.integers(0, 9))
def test_composed_losses_are_those_of_one_machine(loss, rows, size, order):
    x, y, values = arrays(rows)

    def make():
        weights = [tf.Variable(value) for value in values]

        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                value = loss(x, y, weights)
            gradients = tape.gradient(value, weights, unconnected_gradients="zero")
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.assign_sub(0.1 * tf.convert_to_tensor(gradient))
            return value

        return step, weights

    rows_of_rank = Shard(0, divided(rows, size))
    placed_graphs.divided(make, [x, y], [rows_of_rank, rows_of_rank], size, order)
