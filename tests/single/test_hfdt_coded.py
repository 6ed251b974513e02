"""Coded SGD: placements, packets and their cost, on vectors; and over Keras's own fit in memory."""

import re
import sys
from itertools import combinations
from math import comb
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import numpy.testing as npt
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from in_process import trained

from fdt.errors import UsageError, UserError
from hfdt import algorithms
from hfdt.worker import blocks
from hfdt.worker.blocks import Blocks
from tests.in_process_comm import on_ranks

ALL = [(n, r) for n in range(2, 9) for r in range(1, n)]
WORDS = 840  # divided by every r and n up to 8


def exchanged(n, r, words=WORDS, placement="paper", coding="xor", scale=1.0, dtype=np.float32):
    """(the sum at each rank, words that each sent, the blocks' vectors) of one exchange."""
    plan = algorithms.make(f"coded(redundancy={r}, placement={placement!r}, coding={coding!r})").plan(n, r)
    draw = np.random.default_rng(n * 10 + r)
    blocks = [(scale * draw.normal(size=words)).astype(dtype) for _ in plan.owners]

    def rank(comm):
        own = {b: blocks[b].copy() for b, owners in enumerate(plan.owners) if comm.rank in owners}
        return plan.total(own, comm), comm.sent_bytes

    results = on_ranks(n, rank)
    return [total for total, _ in results], [sent for _, sent in results], blocks, plan


def in_block_order(blocks):
    whole = blocks[0].copy()
    with np.errstate(invalid="ignore"):
        for block in blocks[1:]:
            whole += block
    return whole


@pytest.mark.parametrize(("n", "r"), ALL)
def test_the_papers_placement_is_exact_and_costs_what_theory_says(n, r):
    totals, sent, blocks, plan = exchanged(n, r)
    assert plan.owners == list(combinations(range(n), r))
    for total in totals:
        npt.assert_array_equal(total.view(np.uint32), in_block_order(blocks).view(np.uint32))  # bit for bit
    assert sent == [4 * comb(n - 1, r) * WORDS // r] * n


@pytest.mark.parametrize(("n", "r"), [(4, 2), (6, 2), (6, 3), (8, 4), (5, 1)])
def test_groups_send_one_rth_of_a_gradient(n, r):
    totals, sent, blocks, _ = exchanged(n, r, placement="groups")
    for total in totals:
        npt.assert_array_equal(total.view(np.uint32), in_block_order(blocks).view(np.uint32))
    assert len(blocks) == n // r and sent == [4 * WORDS // r] * n


@pytest.mark.parametrize(("n", "r"), ALL)
def test_cyclic_sends_one_rth_also_where_r_does_not_divide(n, r):
    totals, sent, blocks, plan = exchanged(n, r, placement="cyclic")
    for total in totals:
        npt.assert_array_equal(total, totals[0])
        npt.assert_allclose(total, in_block_order(blocks), rtol=1e-4, atol=1e-5)
    assert sent == [4 * -(-n // r) * WORDS // n] * n
    assert all(sum(k in owners for owners in plan.owners) == r for k in range(n))


@pytest.mark.parametrize("placement", ["paper", "cyclic"])
@pytest.mark.parametrize("words", [1, 7, 100])
def test_any_length_and_doubles(placement, words):
    totals, sent, blocks, plan = exchanged(5, 3, words, placement, dtype=np.float64)
    npt.assert_allclose(totals[4], in_block_order(blocks), rtol=1e-12, atol=1e-12)
    assert sent == [8 * plan.sent_words(words)] * 5


def test_bits_of_what_is_not_a_number_come_through():
    totals, _, blocks, _ = exchanged(3, 2, scale=np.float32(np.inf))
    npt.assert_array_equal(np.isfinite(totals[1]), np.isfinite(in_block_order(blocks)))


def test_int32_is_off_by_no_more_than_its_bound_and_equal_everywhere():
    totals, sent, blocks, _ = exchanged(6, 3, coding="int32")
    exact = np.sum(np.asarray(blocks, np.float64), axis=0)
    float_rounding = 2**-24 * np.sum(np.abs(blocks), axis=0) * len(blocks)
    bound = len(blocks) * 10 / (2**31 - 1) / 2
    for total in totals:
        npt.assert_array_equal(total, totals[0])
        assert np.all(np.abs(total - exact) <= bound + float_rounding)
    assert sent == [4 * comb(5, 3) * WORDS // 3] * 6


def test_int32_tells_of_what_it_cannot_hold():
    with pytest.raises(ValueError, match=r"holds values in \[-10, 10\]. Received: .* in a block's gradient"):
        exchanged(3, 2, coding="int32", scale=100.0)


@pytest.mark.parametrize(
    ("placement", "n", "r", "said"),
    [
        ("paper", 3, 3, "redundancy must be below the number of workers, 3. Received: 3"),
        ("groups", 4, 3, "divides the number of workers, 4. Received: 3"),
    ],
)
def test_what_cannot_be_placed_is_said(placement, n, r, said):
    with pytest.raises(ValueError, match=said):
        algorithms.make(f"coded(placement={placement!r})").plan(n, r)


def settled(text, n, words, compute_s=0.0, fixed_s=0.0):
    """(redundancy, what the user is told) on each of `n` ranks; a word takes a second to send to all.

    `compute_s`: of an n-th of a batch, and `fixed_s` of every block besides.
    """
    rule = algorithms.make(text)
    model = SimpleNamespace(run_eagerly=True)
    trainable = SimpleNamespace(model=model, seeds=[], metrics=[], trainable=[np.zeros(words)])

    def rank(comm):
        blocks = Blocks(rule, trainable, comm, comm, None)
        blocks._compute_s = lambda step, batch, block, count: fixed_s + compute_s * n / count
        blocks._word_s = lambda: 1.0
        said = blocks.settle(None, None)
        return blocks.redundancy, said

    return on_ranks(n, rank)


@pytest.mark.parametrize(
    ("placement", "compute_s", "fixed_s", "r"),
    # Of 4 workers and 60 words, paper sends 180, 90 and 20 of them for r = 1, 2, 3; groups 60 and 30.
    # A worker computes 1, 3 and 3 blocks of paper, and one of groups.
    [
        ("paper", 100.0, 0.0, 1),
        ("paper", 80.0, 0.0, 2),
        ("paper", 60.0, 0.0, 3),
        ("paper", 60.0, 12.0, 3),
        ("groups", 31.0, 0.0, 1),
        ("groups", 29.0, 0.0, 2),
        ("groups", 29.0, 30.0, 2),
    ],
)
def test_the_measured_redundancy_is_that_of_the_shortest_step(placement, compute_s, fixed_s, r):
    assert {found for found, _ in settled(f"coded(placement={placement!r})", 4, 60, compute_s, fixed_s)} == {r}


@pytest.mark.parametrize(("n", "r"), ALL)
def test_the_user_is_told_three_counts_of_bytes(n, r):
    (_, said), *_ = settled(f"coded(redundancy={r})", n, WORDS)
    theory = [comb(n - 1, r) * WORDS // r, comb(n - 1, r) * WORDS, WORDS]
    assert [float(count) for count in re.findall(r"([\d.e+-]+) MB", said)] == pytest.approx(
        [4 * words / 1e6 for words in theory], rel=0.005
    )


# -- over Keras --------------------------------------------------------------------------------------------------------
ROWS, BATCH = 70, 16
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(ROWS, 5)).astype("float32")
Y = (X @ np.array([1.0, -2.0, 0.5, 0.0, 3.0]) + 0.1 * GENERATOR.normal(size=ROWS)).astype("float32")


def model(*more, loss="mse"):
    def make():
        keras.utils.set_random_seed(3)
        layers = [keras.layers.Dense(4, "relu", kernel_regularizer="l2"), *[layer() for layer in more]]
        made = keras.Sequential([keras.Input((5,)), *layers, keras.layers.Dense(1)])
        made.compile(keras.optimizers.Adam(0.01), loss, metrics=["mae"])
        return made

    return make


CODED = [
    (3, "coded(redundancy=2)"),
    (4, "coded(redundancy=2, placement='groups')"),
    (3, "coded(redundancy=2, placement='cyclic')"),
    (3, "coded(redundancy=1, coding='int32')"),
    (2, "coded"),
    (3, "coded(redundancy=2, shares='4,1,1')"),
    (4, "coded(redundancy=2, placement='cyclic', shares='1,2,3,4')"),
]


@pytest.mark.parametrize(("size", "text"), CODED)
def test_blocks_train_as_the_whole_batch(size, text):
    # The last batch has six rows: fewer than there are blocks in some.
    weights, logs, notes, sent = trained(text, size, model(), X, Y)
    alone = model()()
    history = alone.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
    for got, want in zip(weights, alone.get_weights(), strict=True):
        npt.assert_allclose(got, want, rtol=2e-4, atol=2e-6)
    for name in ("loss", "mae"):
        npt.assert_allclose([e[name] for e in logs], history[name], rtol=1e-4)
    words = sum(w.size for w in weights)
    if "redundancy=2)" in text:
        assert sent == 5 * 4 * comb(2, 2) * -(-words // 2)
        assert "3 blocks per batch, each on 2 of 3 workers" in notes[-1]


def test_a_redundancy_that_cannot_be_is_one_line():
    with pytest.raises(UserError, match="redundancy must be below the number of workers, 2. Received: 2"):
        trained("coded(redundancy=2)", 2, model(), X, Y)


def test_a_gradient_out_of_int32s_range_ends_the_run():
    with pytest.raises(UserError, match=r"holds values in \[-10, 10\]. Received: .* in a block's gradient"):
        trained("coded(redundancy=1, coding='int32')", 2, model(), X, 1e4 * Y, epochs=1)


def test_ranks_drop_out_the_same_rows_of_a_block():
    weights, _, _, _ = trained("coded(redundancy=2)", 3, model(lambda: keras.layers.Dropout(0.5)), X, Y, probe=False)
    still, _, _, _ = trained("coded(redundancy=2)", 3, model(), X, Y)
    assert any(np.max(np.abs(w - s)) > 1e-3 for w, s in zip(weights, still, strict=True))  # and other bits are refused:


def test_ranks_that_get_other_bits_are_told():
    class Noise(keras.layers.Layer):
        def call(self, inputs):
            import tensorflow as tf

            return inputs + tf.random.normal(tf.shape(inputs))

    with pytest.raises(UserError, match="compute the same bits for the same block, but ranks 0, 2 differ"):
        trained("coded(redundancy=2)", 3, model(Noise), X, Y, epochs=1, probe=False)


def test_a_model_that_needs_the_whole_batch_is_refused():
    with pytest.raises(UserError, match=r"computes each block of a batch alone. Received: .*batchnorm"):
        trained("coded(redundancy=2)", 3, model(keras.layers.BatchNormalization), X, Y, epochs=1)
    inexact = {"allow_inexact": "1"}
    _, logs, _, _ = trained("coded(redundancy=2)", 3, model(keras.layers.BatchNormalization), X, Y, options=inexact)
    assert logs[1]["loss"] < logs[0]["loss"]


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_an_embedding_is_refused_where_the_optimizer_squares_each_slice(optimizer):
    rows = np.random.default_rng(0).integers(0, 3, (40, 4))  # indices repeat

    def make():
        keras.utils.set_random_seed(3)
        layers = [keras.layers.Embedding(3, 2), keras.layers.Flatten(), keras.layers.Dense(1)]
        made = keras.Sequential([keras.Input((4,), dtype="int32"), *layers])
        made.compile(getattr(keras.optimizers, optimizer)(0.1), "mse")
        return made

    if optimizer == "Adam":
        with pytest.raises(UserError, match="an embedding with Adam, which uses each of them alone"):
            trained("coded(redundancy=2)", 3, make, rows, rows.sum(axis=1), epochs=1)
        return
    weights, *_ = trained("coded(redundancy=2)", 3, make, rows, rows.sum(axis=1))
    alone, *_ = trained("allreduce", 1, make, rows, rows.sum(axis=1))
    for one, other in zip(weights, alone, strict=True):
        npt.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


# -- workers of unequal speed ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("n", "r", "speeds", "expected"),
    [
        (3, 2, (1, 1, 1), (2 / 3, 2 / 3, 2 / 3)),
        (3, 2, (2, 1, 1), (1, 0.5, 0.5)),  # blocks 01 and 02 are half the batch each, 12 is empty
        (3, 2, (9, 1, 1), (1, 0.5, 0.5)),  # more than everything cannot be asked of anybody
        (4, 2, (4, 3, 2, 1), (0.8, 0.6, 0.4, 0.2)),
        (4, 1, (2, 1, 1, 1), (0.4, 0.2, 0.2, 0.2)),
    ],
)
def test_blocks_are_sized_by_speed(n, r, speeds, expected):
    owners = list(combinations(range(n), r))
    npt.assert_allclose(blocks.loads(owners, blocks.block_sizes(owners, speeds), n), expected, atol=0.03)


def test_measured_speeds_are_asked_of_every_rank(monkeypatch):
    monkeypatch.setattr(Blocks, "_compute_s", lambda self, *_: [1.0, 2.0, 2.0][self._comm.rank])
    _, _, notes, _ = trained("coded(redundancy=2, shares='measured')", 3, model(), X, Y, epochs=1)
    loads = [int(load) for load in re.findall(r"(\d+)%", notes[-1])]
    npt.assert_allclose(loads, [100, 50, 50], atol=3)


def test_shares_that_cannot_be():
    with pytest.raises(UserError, match="a number for each of 3 workers. Received: 2"):
        trained("coded(redundancy=2, shares='2,1')", 3, model(), X, Y, epochs=1)
    for wrong in ("2,x", "0,1", "-1,1"):
        with pytest.raises(UsageError, match="shares must be equal, measured, or a number above 0 for each worker"):
            algorithms.make(f"coded(shares={wrong!r})")
    with pytest.raises(UsageError, match="coded: shares must not be empty"):
        algorithms.make("coded(shares='')")
