import numpy as np
import numpy.testing as npt
import pytest

from fdt.data import epochs
from fdt.data.epochs import EpochBoundary, Epochs, Span


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_ranks_parts_are_the_batch_in_order(size):
    start, stop = epochs.bounds(1003, 64, 0, 16)
    cuts = [epochs.cut(start, stop, rank, size) for rank in range(size)]
    for batch in range(16):
        rows = [np.arange(c.low[batch], c.high[batch])[: c.share[batch, 0]] for c in cuts]
        npt.assert_array_equal(np.concatenate(rows), np.arange(start[batch], stop[batch]))
        assert {int(c.share[batch, 1]) for c in cuts} == {stop[batch] - start[batch]}
    assert stop[-1] - start[-1] == 1003 % 64


def test_a_rank_without_a_sample_gets_the_batchs_first_row():
    start, stop = epochs.bounds(66, 64, 0, 2)  # the last batch has 2 rows for 4 ranks
    last = [
        tuple(int(c[1]) for c in cut[:2]) + tuple(cut.share[1])
        for cut in (epochs.cut(start, stop, r, 4) for r in range(4))
    ]
    assert last == [(64, 65, 0, 2), (64, 65, 1, 2), (64, 65, 0, 2), (65, 66, 1, 2)]


def test_a_permutation_depends_on_seed_and_pass_alone():
    one, again = epochs.permutation(50, 7, 3), epochs.permutation(50, 7, 3)
    npt.assert_array_equal(one, again)
    npt.assert_array_equal(one, np.random.Generator(np.random.PCG64([7, 3])).permutation(50))
    assert not np.array_equal(one, epochs.permutation(50, 7, 4))
    assert not np.array_equal(one, epochs.permutation(50, 8, 3))
    npt.assert_array_equal(np.sort(one), np.arange(50))


def test_fresh_rows_differ_by_index_and_do_not_repeat():
    one, other = epochs.fresh_rows(1000, 64, 1, 0, 0), epochs.fresh_rows(1000, 64, 1, 0, 1)
    assert len(set(one.tolist())) == 64
    assert not np.array_equal(one, other)


def test_without_steps_every_epoch_is_a_pass():
    plan = Epochs(batches=10, first=2)
    assert [plan.spans(e) for e in (2, 3, 4)] == [[Span(e, 0, 10)] for e in (2, 3, 4)]


def test_keras_ends_an_epoch_where_the_pass_ends():
    plan = Epochs(batches=10, steps=4, first=1)
    assert [plan.spans(e)[0] for e in range(1, 6)] == [
        Span(1, 0, 4),
        Span(1, 4, 4),
        Span(1, 8, 2),
        Span(2, 0, 4),
        Span(2, 4, 4),
    ]
    assert Epochs(batches=10, steps=20).count(1) == 10
    assert Epochs(batches=10, steps=5).spans(2) == [Span(1, 0, 5)]


def test_tf_keras_goes_on_in_the_next_pass():
    plan = Epochs(batches=10, steps=8, passes=2, boundary=EpochBoundary.JOINED)
    assert plan.spans(0) == [Span(0, 0, 8)]
    assert plan.spans(1) == [Span(0, 8, 2), Span(1, 0, 6)]
    assert epochs.locate(plan.spans(1), 3) == (1, 1)
    assert Epochs(batches=10, steps=15, passes=2, boundary=EpochBoundary.JOINED).count(1) == 5


def test_validation_begins_anew():
    plan = Epochs(batches=10, steps=4, boundary=EpochBoundary.ANEW)
    assert plan.spans(2) == [Span(2, 0, 4)]


def test_behind_the_end_is_an_index_error():
    with pytest.raises(IndexError):
        epochs.locate([Span(0, 0, 3)], 3)
