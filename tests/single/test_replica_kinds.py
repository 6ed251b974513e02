"""What an eager loop computes of its part of a batch: a sum over samples, a mean, or both."""

import keras
import pytest
import tensorflow as tf

from hfdt.replica import kinds
from hfdt.replica.algebra import Kind

MINE, TOTAL = 4, 9


@pytest.fixture
def batch():
    x, y = tf.random.stateless_normal([MINE, 3], [1, 2]), tf.constant([0, 1, 1, 0])
    with kinds.followed():
        kinds.enter((x, y), (MINE, TOTAL))
        yield x, y


W = tf.ones([3, 2])


def squares(x):
    return tf.reduce_sum((x @ W) ** 2, axis=1)


def views(x):
    both = tf.concat([x, -x], 0)
    return tf.matmul(both, both, transpose_b=True)


@pytest.mark.parametrize(
    ("compute", "kind"),
    [
        (lambda x, y: tf.reduce_mean(squares(x)), Kind.MEAN),
        (lambda x, y: tf.reduce_sum(squares(x)), Kind.SUM),
        (lambda x, y: tf.reduce_sum(squares(x)) / 64, Kind.SUM),
        (lambda x, y: tf.reduce_sum(squares(x)) * (1 / TOTAL), Kind.SUM),
        (lambda x, y: tf.reduce_sum(squares(x)) / x.shape[0], Kind.MEAN),
        (lambda x, y: tf.reduce_sum(squares(x)) / tf.cast(tf.shape(x)[0], tf.float32), Kind.MEAN),
        (lambda x, y: tf.reduce_mean(squares(x)) + 0.1 * tf.reduce_sum(W**2), Kind.MEAN),
        (lambda x, y: tf.reduce_sum(squares(x)) + tf.reduce_mean(squares(x)), Kind.BOTH),
        (lambda x, y: tf.reduce_sum(squares(x)) + tf.reduce_sum(W**2), Kind.BOTH),
        (lambda x, y: 0.0 + tf.reduce_sum(squares(x)) + tf.nn.l2_loss(x), Kind.SUM),
        (lambda x, y: tf.reduce_sum(tf.cast(tf.equal(tf.argmax(x @ W, 1, tf.int32), y), tf.int32)), Kind.SUM),
        (lambda x, y: keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, x @ W), Kind.MEAN),
        (lambda x, y: tf.reduce_sum(tf.reshape(squares(x), [-1])), Kind.SUM),
        (lambda x, y: tf.reduce_mean(keras.ops.reshape(squares(x), [-1, 1])), Kind.MEAN),
        (lambda x, y: tf.reshape(tf.reduce_sum(squares(x)), [1, 1]), Kind.SUM),
        (lambda x, y: tf.reduce_sum(squares(x)) / tf.cast(kinds.sized(tf.size, x), tf.float32), Kind.MEAN),
        (lambda x, y: tf.reduce_mean(squares(x)) / 2.0 + 1.0, Kind.MEAN),
        (lambda x, y: tf.squeeze(tf.matmul(x @ W[:, :1], x @ W[:, :1], transpose_a=True)), Kind.SUM),
        (lambda x, y: tf.reduce_max(x), Kind.BENT),
        (lambda x, y: tf.sqrt(tf.reduce_mean(squares(x))), Kind.BENT),
        (lambda x, y: tf.norm(x @ W), Kind.BENT),
        (lambda x, y: tf.reduce_sum(squares(x)) / tf.reduce_sum(squares(x) + 1.0), Kind.BENT),
        (lambda x, y: tf.reduce_mean(squares(x)) < 3.0, Kind.MEAN),
        (lambda x, y: tf.reduce_mean(tf.matmul(x, x, transpose_b=True)), Kind.BENT),
        (lambda x, y: tf.reduce_mean((x - tf.reduce_mean(x, 0)) ** 2), Kind.BENT),
        (lambda x, y: tf.reduce_sum(squares(x) / tf.cast(tf.shape(x)[0], tf.float32)), Kind.BENT),
        (lambda x, y: tf.reduce_sum(W), None),
        (lambda x, y: tf.reduce_mean(tf.reduce_mean(tf.stack([squares(x), squares(2 * x)]), axis=0)), Kind.MEAN),
        (lambda x, y: tf.reduce_sum(tf.reduce_mean(tf.stack([squares(x), squares(2 * x)]), axis=0)), Kind.SUM),
        (lambda x, y: tf.reduce_mean(tf.reduce_sum(tf.expand_dims(x, 0), axis=0)), Kind.MEAN),
        (lambda x, y: tf.reduce_sum(tf.reduce_mean(tf.transpose(x), axis=0)), Kind.SUM),
        (lambda x, y: tf.reduce_sum(tf.reduce_mean(tf.transpose(x), axis=1)), Kind.MEAN),
        (lambda x, y: tf.reduce_mean(tf.transpose(tf.stack(tf.unstack(tf.transpose(x))))[:, 0]), Kind.MEAN),
        (lambda x, y: tf.reduce_sum(squares(x)) / tf.cast(tf.shape(x)[1], tf.float32), Kind.SUM),
        (lambda x, y: tf.reduce_sum(squares(x)) / tf.cast(tf.shape(tf.transpose(x))[1], tf.float32), Kind.MEAN),
        (lambda x, y: tf.reduce_mean(views(x)), Kind.BENT),
        (lambda x, y: tf.reduce_mean(tf.reduce_max(x @ W, axis=0)), Kind.BENT),
        (lambda x, y: tf.reduce_mean(tf.reduce_max(x @ W, axis=1)), Kind.MEAN),
    ],
)
def test_a_number_is_followed_from_the_rows(batch, compute, kind):
    mark = kinds.mark_of(compute(*batch))
    assert (mark.kind if mark else None) is kind


def test_a_half_is_the_authors_and_no_mean_of_two_rows():
    with kinds.followed():
        x = tf.ones([2, 3])
        kinds.enter(x, (2, 5))
        assert kinds.mark_of(0.5 * tf.reduce_sum(x)).kind is Kind.SUM
        assert kinds.mark_of(tf.reduce_sum(x) / 2.0).kind is Kind.MEAN, "x.shape[0]"


def test_a_condition_says_nothing_of_what_it_chooses(batch):
    loss, mask = squares(batch[0]), tf.cast(batch[1], tf.float32)
    count = tf.reduce_sum(mask)
    assert kinds.mark_of(tf.where(count > 0, tf.reduce_sum(loss * mask) / count, 0.0)).over == 2.0
    assert kinds.mark_of(tf.where(count > 0, tf.reduce_sum(loss), 0.0)).kind is Kind.SUM


def test_nothing_is_marked_within_our_own_work_and_after(batch):
    x, _ = batch
    with kinds.unfollowed():
        assert kinds.mark_of(tf.reduce_sum(x)) is None
    loss = tf.reduce_sum(x)
    kinds.forget(loss)
    assert kinds.mark_of(loss + 1.0) is None


def test_operations_without_attributes_are_followed_too():
    with kinds.followed():
        names = tf.constant([" a", "b ", "c"])
        kinds.enter(names, (3, 7))
        assert kinds.mark_of(tf.strings.strip(names)).kind is Kind.ROWS
        kinds._follow("StringStrip", [names], None, [stripped := tf.constant(["a", "b", "c"])])
        assert kinds.mark_of(stripped).kind is Kind.ROWS


def test_functions_are_traced_as_ever(batch):
    assert tf.function(lambda t: t + 1.0)(batch[0]).shape == (MINE, 3)


def test_what_numpy_holds_is_known_by_its_rows(batch):
    x = batch[0].numpy()
    assert kinds.mark_of(tf.reduce_sum(x)) is None
    kinds.imply((MINE, TOTAL), MINE)
    assert kinds.mark_of(tf.reduce_sum(x)).kind is Kind.SUM
    assert kinds.mark_of(tf.reduce_mean(tf.matmul(x, W))).kind is Kind.MEAN
    assert kinds.mark_of(tf.reduce_sum(W)) is None
    kinds.imply_nothing()
    assert kinds.mark_of(tf.reduce_sum(x)) is None


@pytest.mark.parametrize(
    "compute",
    [
        lambda loss, mask: tf.reduce_sum(loss * mask) / tf.reduce_sum(mask),
        lambda loss, mask: tf.reduce_sum(loss * mask) / (tf.maximum(tf.reduce_sum(mask), 1.0) + 1e-8),
        lambda loss, mask: 2.0 * tf.math.divide_no_nan(tf.reduce_mean(loss * mask), tf.reduce_mean(mask)),
        lambda loss, mask: tf.reduce_mean(tf.boolean_mask(loss, mask > 0)),
    ],
)
def test_a_mean_over_a_mask_is_weighed_by_the_mask(batch, compute):
    x, y = batch
    mark = kinds.mark_of(compute(squares(x), tf.cast(tf.not_equal(y, 0), tf.float32)))
    assert (mark.kind, round(mark.over, 4)) == (Kind.MEAN, 2.0)


def test_means_over_different_things_cannot_be_added(batch):
    loss, mask = squares(batch[0]), tf.cast(batch[1], tf.float32)
    masked = tf.reduce_sum(loss * mask) / tf.reduce_sum(mask)
    assert kinds.mark_of(masked + tf.reduce_mean(loss)).kind is Kind.BOTH
    assert kinds.mark_of(masked + tf.reduce_sum(W)).over == 2.0
