"""The variables of a replicated script: they start with rank 0's values, and diverging variables are named."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from fdt.errors import WorkerError
from fdt.patches import patched
from replica.exchange import GroupedExchange
from replica.graph.flatten import flatten
from replica.graph.interpret import draws_within, interpret
from replica.step_count import SampleCount
from replica.variables import ReplicatedVariables
from tests.in_process_comm import on_ranks
from tests.single.thread_groups import MemoryGroup


def on_each(work, size=2):
    """`work(rank, variables)` on ranks that are threads."""

    def run(comm):
        exchange = GroupedExchange(MemoryGroup(comm.rank, size, comm))
        samples = SampleCount(SimpleNamespace(rows=(0, 0), entered=0, gradient=lambda: None))
        return work(comm.rank, ReplicatedVariables(exchange, lambda: None, samples))

    return on_ranks(size, run)


def test_variables_begin_with_rank_0s_values():
    def work(rank, variables):
        made = [tf.Variable([1.0 + rank, np.nan]), tf.Variable(rank > 0), tf.Variable(7 * rank)]
        for variable in made:
            variables.made(variable)
        return [variable.numpy().tolist() for variable in made]

    for values in on_each(work):
        assert values[0][0] == 1.0 and np.isnan(values[0][1])
        assert values[1:] == [False, 0]


@pytest.mark.parametrize(
    ("updates", "steps"),
    [
        ("w a a a", 3),  # values of a checkpoint before the first gradient
        ("ab a-b aw b", 4),  # the variables of an update one by one; a decay beside it
        ("a a w a w w", 3),  # weights that are set between two steps and behind the last one
        ("a b a b a b", 3),  # a GAN
        ("a a a b a a a b", 6),  # with three steps of the critic for one of the generator
        ("a a a b b b b", 7),  # a model, then another one
        ("a b a b c c c", 5),  # a GAN, then a model
    ],
)
def test_a_step_is_counted_when_variables_are_assigned_again_after_a_gradient(updates, steps):
    """A word is a gradient and the variables that it updates; `-` and `w`: without a gradient, one and all."""

    def work(rank, variables):
        made = {name: tf.Variable(1.0) for name in "abc"}
        for variable in made.values():
            variables.made(variable)
        for update in updates.split():
            if update != "w":
                variables.begin_training()
            for letters in update.replace("w", "-abc").split("-"):
                for name in letters:
                    variables.assigned([made[name].handle])
        return variables.steps

    assert on_each(work) == [steps, steps]


def test_a_handle_that_has_the_id_of_a_removed_ones_is_no_variable():
    def work(rank, variables):
        weight, other = tf.Variable(1.0), tf.Variable(1.0, trainable=False)
        variables.made(weight)
        variables._by_handle[id(other.handle)] = variables._by_handle.pop(id(weight.handle))  # as after its removal
        for _ in range(3):
            variables.begin_training()
            variables.assigned([other.handle])
        return variables.steps

    assert on_each(work, size=1) == [0]


def test_a_traced_function_that_computes_a_gradient_takes_it_with_each_call():
    def work(rank, variables):
        weight = tf.Variable(1.0)
        variables.made(weight)

        @tf.function
        def gradient():
            with tf.GradientTape() as tape:
                loss = weight * weight
            variables.begin_training()
            return tape.gradient(loss, weight)

        @tf.function
        def outer():
            return gradient()

        @tf.function
        def below():
            total = weight * 0.0
            for _ in tf.range(2):
                total += gradient()
            return total

        @tf.function
        def other():
            return weight * weight

        gradient.get_concrete_function()
        traced = [f.get_concrete_function().graph for f in (gradient, outer, below, other)]
        variables.assigned([weight.handle])  # the trace computed none
        return [variables.takes(graph) for graph in traced], variables.steps

    assert on_each(work, size=1) == [([True, True, True, False], 0)]


def test_variables_that_the_trace_of_a_function_makes_are_registered():
    """A model that is called first within a tf.function, and its optimizer's slots, are made while it is traced."""

    def work(rank, variables):
        made = []

        @tf.function
        def step():
            if not made:
                with tf.init_scope():
                    made.append(tf.Variable(1.0))
                made.append(tf.Variable(2.0))
            return made[0] + made[1]

        with patched(variables.patches()):
            assert step() == 3.0
        counted = []
        for variable in (made[0], made[1], made[1]):
            variables.begin_training()
            variables.assigned([variable.handle])
            counted.append(variables.steps)
        return counted

    assert on_each(work, size=1) == [[1, 1, 3]]


def test_an_assignment_beside_a_loop_that_draws_is_counted():
    variable = tf.Variable(1.0)

    @tf.function
    def step():
        total = tf.constant(0.0)
        for _ in tf.range(2):
            total += tf.random.uniform(())
        variable.assign(total)

    function, assigned = step.get_concrete_function(), []
    assert draws_within(function.graph)
    interpret(flatten(function.graph), function.captured_inputs, assigned.extend)
    assert len(assigned) == 1 and assigned[0] is variable.handle


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_part_are_named_with_the_variable(size):
    def work(rank, variables):
        kernel, bias = tf.Variable([1.0, 2.0]), tf.Variable([3.0], name="bias")
        variables.made(kernel)
        variables.made(bias)
        variables.begin_training()
        variables.assigned([bias.handle])
        bias.assign([3.0 + (rank == size - 1)])
        with pytest.raises(WorkerError, match=r"variable 'bias(:0)?' differs by 33.33% between ranks after step 1"):
            variables.check()
        return True

    assert all(on_each(work, size))


def test_what_rounding_has_moved_is_set_to_rank_0s():
    def work(rank, variables):
        kernel = tf.Variable([1.0, 2.0])
        variables.made(kernel)
        kernel.assign_add([1e-6 * rank, 0.0])
        variables.check()
        return kernel.numpy().tolist()

    assert on_each(work) == [[1.0, 2.0], [1.0, 2.0]]


def test_a_random_generators_count_that_a_thread_advanced_is_kept():
    def work(rank, variables):
        state = tf.Variable([512635831, 12 + rank], dtype=tf.int64, trainable=False)
        variables.made(state)
        state.assign([512635831, 12 + rank])
        variables.check()
        return state.numpy().tolist()

    assert on_each(work) == [[512635831, 12], [512635831, 13]]


def test_a_variable_that_one_rank_has_collected_is_no_difference():
    def work(rank, variables):
        kernel = tf.Variable([1.0])
        variables.made(kernel)
        if rank == 1:
            del kernel
        variables.check()
        return True

    assert all(on_each(work))


def test_what_rounding_has_moved_is_set_where_another_rank_has_collected_the_variable():
    def work(rank, variables):
        kernel = tf.Variable([1.0, 2.0])
        variables.made(kernel)
        kernel.assign_add([1e-6 * (rank == 1), 0.0])
        values = kernel.numpy
        if rank == 2:
            del kernel, values
        variables.check()
        return values().tolist() if rank < 2 else [1.0, 2.0]

    assert on_each(work, 3) == [[1.0, 2.0]] * 3
