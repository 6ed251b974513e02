"""The contract of HFDT's compressors (hfdt/compressors), and their state between steps."""

import keras
import numpy as np
import numpy.testing as npt
import pytest
import tensorflow as tf

from fdt.errors import UsageError, UserError
from fdt.keras import flavor_of
from fdt.trainable import Trainable
from hfdt import compressors
from hfdt.worker.compression import GradientCompression, compression_of
from hfdt.worker.exchange import StepGroup
from hfdt.worker.step_context import StepContext, StepTerms
from tests.in_process_comm import on_ranks

TEXTS = [*compressors.names(), "powersgd(rank=1)", "powersgd(rank=4)"]
SHAPES = [(40, 30), (30,), (3, 3, 4, 20), (2, 2)]  # a dense kernel, a bias, a convolution's, one that stays as it is
RANKS = 3


def gradient(rank, step, scale=1.0):
    rng = np.random.default_rng([rank, step])
    return [(scale * rng.normal(size=shape)).astype(np.float32) for shape in SHAPES]


def summed(step):
    return [sum(parts) for parts in zip(*(gradient(rank, step) for rank in range(RANKS)), strict=True)]


@pytest.fixture(params=TEXTS)
def text(request):
    return request.param


def exchanges(text, steps=1, size=RANKS, make=gradient):
    """For each rank and step: the sums of gradients and the state after it, and the number of exchanges."""

    def work(comm):
        compression, calls, out = GradientCompression(compressors.make(text), text), [], []

        def add(tensors):
            calls.append(sum(int(tf.size(t)) * t.dtype.size for t in tensors))
            return comm.sum(tensors, f"x.{len(calls)}")

        for step in range(steps):
            calls.clear()
            mine = [tf.constant(g) for g in make(comm.rank, step)]
            wire, end = compression.begin(mine, len(mine), "key")
            assert len(wire) == len(mine)
            sums = end(add(wire), add)
            ((variables, _),) = compression._states.values()
            out.append(([s.numpy() for s in sums], [v.numpy() for v in variables], list(calls)))
        return out

    return on_ranks(size, work)


def test_sums_are_equal_on_all_ranks_and_have_the_gradients_form(text):
    ranks = exchanges(text, steps=2)
    for step in range(2):
        for sums, *_ in (rank[step] for rank in ranks):
            assert [(s.shape, s.dtype.name) for s in sums] == [(shape, "float32") for shape in SHAPES]
            for one, other in zip(sums, ranks[0][step][0], strict=True):
                npt.assert_array_equal(one, other)


def test_the_bytes_are_those_that_were_announced_and_fewer(text):
    compressor = compressors.make(text)
    plain = sum(4 * int(np.prod(shape)) for shape in SHAPES)
    (((_, _, calls),),) = exchanges(text, size=1)
    assert sum(calls) == compressor.wire_bytes(SHAPES) < plain


def test_zero_gradients_give_zero_and_do_not_end_what_follows(text):
    def make(rank, step):
        return gradient(rank, step, float(step > 1))

    rank = exchanges(text, steps=3, make=make)[0]
    for sums, *_ in rank[:2]:
        assert all(not s.any() for s in sums)
    assert all(s.any() for s in rank[2][0])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("position", [0, 1])
def test_a_gradient_that_is_not_finite_makes_the_sum_so_and_leaves_the_state(text, bad, position):
    def make(rank, step):
        made = gradient(rank, step)
        if step == 1 and rank == 1:
            made[position].flat[3] = bad
        return made

    for rank in exchanges(text, steps=2, make=make):
        assert not np.isfinite(rank[1][0][position]).all()
        for before, after in zip(rank[0][1], rank[1][1], strict=True):
            npt.assert_array_equal(after, before)


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_16_bits_round(name):
    for sums, want in zip(exchanges(name)[0][0][0], summed(0), strict=True):
        npt.assert_allclose(sums, want, atol=0.1, rtol=1e-2)
        assert np.abs(sums - want).max() > 0


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_powersgd_sums_and_residuals_are_all_gradients(rank):
    steps = 12
    ranks = exchanges(f"powersgd(rank={rank})", steps)
    for position, index in ((0, 0), (2, 1)):  # the matrices, and their numbers among the residuals
        received = sum(ranks[0][step][0][position] for step in range(steps))
        residual = sum(of[-1][1][2 + index] for of in ranks).reshape(SHAPES[position])
        npt.assert_allclose(received + residual, sum(summed(step)[position] for step in range(steps)), atol=1e-3)
    for position in (1, 3):
        npt.assert_allclose(ranks[0][0][0][position], summed(0)[position], rtol=1e-5)


def test_powersgd_is_exact_for_a_sum_of_its_rank_after_one_step_of_power_iteration():
    left, right = np.random.default_rng(1).normal(size=(40, 2)), np.random.default_rng(2).normal(size=(2, 30))

    def make(rank, step):
        return [(left @ right).astype(np.float32) * (rank + 1), *gradient(rank, step)[1:]]

    ((sums, _, calls), *_), *_ = exchanges("powersgd(rank=2)", make=make)
    npt.assert_allclose(sums[0], 6 * left @ right, rtol=1e-3, atol=1e-3)
    assert len(calls) == 2, "two all-reduces"


def test_repeating_one_gradient_is_sent_whole_in_the_end():
    """The mean of what is received comes to the gradient: error feedback loses nothing."""

    def make(rank, step):
        return gradient(rank, 0)

    steps = 60
    first = exchanges("powersgd(rank=2)", steps, make=make)[0]
    mean = sum(first[step][0][0] for step in range(steps)) / steps
    want = summed(0)[0]
    assert np.linalg.norm(mean - want) < 0.25 * np.linalg.norm(want)


def test_state_begins_anew(text):
    def work(comm):
        compression = GradientCompression(compressors.make(text), text)
        results = []
        for _ in range(2):
            mine = [tf.constant(g) for g in gradient(0, 1)]
            wire, end = compression.begin(mine, len(mine), 0)
            results.append([s.numpy() for s in end(wire, list)])
            compression.restart()
        return results

    ((one, two),) = on_ranks(1, work)
    for a, b in zip(one, two, strict=True):
        npt.assert_array_equal(a, b)


def test_in_a_step_rows_of_an_embedding_and_forward_state_stay_apart():
    def work(comm):
        terms = StepTerms(comm, compression=GradientCompression(compressors.make("powersgd"), "powersgd"))
        sums = []
        for step in range(2):  # an embedding has another number of rows in each step
            group = StepGroup(StepContext(terms, tf.constant([1, RANKS], tf.int64)), "key")
            values = tf.ones([step + 2, 30])
            rows = tf.IndexedSlices(values, tf.range(step + 2), tf.constant([50, 30]))
            sums.append(group.mean([tf.constant(gradient(comm.rank, step)[0]), rows, None]))
        return sums, terms.sent_bytes

    for sums, sent in on_ranks(RANKS, work):
        for step, (matrix, rows, none) in enumerate(sums):
            assert none is None and matrix.shape == (40, 30)
            npt.assert_allclose(rows.values, np.full((1 * RANKS * (step + 2), 30), 1 / RANKS), rtol=1e-6)
        assert sent, "exchanges are counted"


def test_what_is_sent_later_needs_one_scale():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "mse")
    with pytest.raises(UserError, match="--compress powersgd needs an optimizer that does not scale the loss"):
        compression_of(Trainable(flavor_of(model), model), {"compress": "powersgd"}, 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("zip", "--compress must be one of bf16, fp16, powersgd, or a .py file. Received: zip"),
        ("powersgd(rank=0)", "powersgd: rank must be 1 or more. Received: 0"),
        ("powersgd(k=1)", "powersgd has no such parameter; its parameters: rank. Received: k"),
        ("powersgd(rank=1.5)", "powersgd: rank must be int. Received: 1.5"),
        ("powersgd(", r"a compressor must be NAME or NAME\(parameter=value, ...\). Received: powersgd\("),
    ],
)
def test_a_wrong_name_is_refused_in_one_line(text, said):
    with pytest.raises(UsageError, match=said):
        compressors.make(text)
