"""A batch among a step function's arguments: the rank's part of it, and the share that graphs read."""

from types import SimpleNamespace

import numpy as np
import numpy.testing as npt
import pytest
import tensorflow as tf

from fdt.patches import patched
from hfdt.replica import batches
from hfdt.replica.batches import MARK
from hfdt.replica.constants import Rows
from hfdt.replica.places import Places
from hfdt.replica.probe import Trials
from hfdt.step import Terms

ROWS = np.arange(30, dtype=np.float32).reshape(5, 2, 3)


def places():
    return Places(Terms(SimpleNamespace(rank=0, size=2), own_step=False))


@pytest.mark.parametrize("rows", [ROWS, tf.constant(ROWS), tf.constant(ROWS[:, 0, 0]), tf.constant(list("abcde"))])
def test_ranks_get_the_rows_one_after_another(rows):
    other = tf.zeros([3])
    (first, same), share = batches.cut((rows, other), 5, 0, 2)
    (second, _), last = batches.cut((rows, other), 5, 1, 2)
    assert (share, last) == ((2, 5), (3, 5))
    assert same is other
    npt.assert_array_equal(np.concatenate([first, second]), np.array(rows))


def test_a_rank_without_a_row_gets_the_first_and_no_share():
    part, share = batches.cut(tf.constant(ROWS[:1]), 1, 0, 2)
    npt.assert_array_equal(part, ROWS[:1])
    assert share == (0, 1)


def test_a_tensor_that_is_followed_is_cut_as_a_script_would(monkeypatch):
    """By the operation that algebra.py knows."""
    monkeypatch.setattr(tf.raw_ops, "Slice", None)
    rows = tf.constant(ROWS)
    setattr(rows, MARK, "whole")
    npt.assert_array_equal(batches.cut(rows, 5, 0, 2)[0], ROWS[:2])


@pytest.mark.parametrize("by_graph", [False, True])
def test_graphs_read_the_share_of_the_batch_at_hand(by_graph):
    """Also where a graph has changed it since: one that iterates a dataset itself."""
    here = places()
    read = tf.function(lambda: here.share.read_value())
    iterates = tf.function(lambda share: here.part_of_graph(share))
    here.share.read_value()
    for share in ((2, 5), (2, 5), (3, 7), (2, 5)):
        if by_graph:
            iterates(tf.constant([1, 9], tf.int64))
        with here.part(share) as step:
            assert tuple(read().numpy()) == here.share_now() == share
            npt.assert_allclose(step.share(tf.float32), share[0] / share[1])


def test_a_share_is_told_once_for_batches_of_one_size(monkeypatch):
    here, told = places(), []
    monkeypatch.setattr(here, "_share", SimpleNamespace(assign=told.append))
    for share in ((2, 5), (2, 5), (3, 7), (3, 7), (2, 5)):
        with here.part(share):
            pass
    here.part_of_loop(None, tf.constant([1, 9], tf.int64))
    with here.part((2, 5)):
        pass
    assert [tuple(map(int, share)) for share in told] == [(2, 5), (3, 7), (2, 5), (1, 9), (2, 5)]


@pytest.mark.parametrize("compiled", [False, True])
def test_rows_that_a_step_makes_are_cut_as_its_batch_is(compiled):
    def step():
        return tf.ones((4, 1)), tf.zeros((3, 1))

    here = places()
    rows = Rows(here, Trials(), 0, 2)
    rows.given("step", 4)
    here.share.read_value()
    with patched(rows.patches_of_tensorflow()):
        made = tf.function(step) if compiled else step
        with here.part((2, 4)):
            assert [len(each) for each in made()] == [2, 3]
        assert [len(each) for each in step()] == [4, 3]


def test_a_batch_of_no_rows_is_no_error():
    """`x[i : i + BATCH]` behind the last row, in a loop that ends one step late."""
    with places().part((0, 0)) as step:
        assert np.isnan(step.share(tf.float32))  # as a mean of nothing is


def test_a_graph_that_nobody_calls_leaves_nothing_behind():
    """TensorFlow 1's: what is made there, outside of functions too, is of no use elsewhere."""
    x = tf.constant(ROWS)
    batches._between.cache_clear()
    with tf.Graph().as_default(), pytest.raises(Exception):  # noqa: B017 - TensorFlow's own words
        batches.cut(x, 5, 0, 2)
    npt.assert_array_equal(batches.cut(x, 5, 0, 2)[0], ROWS[:2])
