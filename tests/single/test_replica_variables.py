"""The variables of a replicated script: they start with rank 0's values, and diverging variables are named."""

import numpy as np
import pytest
import tensorflow as tf

from fdt.errors import WorkerError
from fdt.patches import patched
from hfdt.collectives.inprocess import on_ranks
from replica.exchange import GroupedExchange
from replica.graph.flatten import flatten
from replica.graph.interpret import draws_within, interpret
from replica.variables import ReplicatedVariables
from tests.single.thread_groups import MemoryGroup


def on_each(work, size=2):
    """`work(rank, variables)` on ranks that are threads."""

    def run(comm):
        return work(comm.rank, ReplicatedVariables(GroupedExchange(MemoryGroup(comm.rank, size, comm)), lambda: None))

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


def test_a_step_is_counted_when_a_variable_is_assigned_again():
    def work(rank, variables):
        kernel, bias, average = tf.Variable(1.0), tf.Variable(1.0), tf.Variable(1.0, trainable=False)
        for variable in (kernel, bias, average):
            variables.made(variable)
        variables.assigned([kernel.handle])  # no gradient has been taken: these are a checkpoint's values
        variables.begin_training()
        for _ in range(3):
            variables.assigned([kernel.handle])
            variables.assigned([bias.handle, average.handle])
        return variables.steps

    assert on_each(work) == [3, 3]


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
        variables.begin_training()
        counted = []
        for variable in (made[0], made[1], made[1]):
            variables.assigned([variable.handle])
            counted.append(variables.steps)
        return counted

    assert on_each(work, size=1) == [[1, 1, 2]]


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


def test_a_variable_that_one_rank_has_collected_is_no_difference():
    def work(rank, variables):
        kernel = tf.Variable([1.0])
        variables.made(kernel)
        if rank == 1:
            del kernel
        variables.check()
        return True

    assert all(on_each(work))
