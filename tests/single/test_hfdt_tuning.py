"""HFDT's options that are `auto`: what is measured on a simulated network, and what follows from it."""

import sys
from pathlib import Path

import keras
import numpy as np
import numpy.testing as npt
import pytest
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parent))
from in_process import trained

from fdt.keras import flavor_of
from fdt.network import Cluster, NetworkLink, NodeGroup
from fdt.trainable import Trainable
from hfdt.collectives.simulated import SimulatedWorld, on_simulated
from hfdt.worker import tuning
from hfdt.worker.step_context import StepTerms
from hfdt.worker.tuning import Tuning, measured, slowest

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(48, 6)).astype("float32"), RNG.normal(size=(48, 1)).astype("float32")
pytestmark = pytest.mark.filterwarnings("default")


def world(size, bandwidth=1e8, latency_s=0.0, step_s=0.001):
    """Ranks on a star of links, which send `bandwidth` bytes a second."""
    return SimulatedWorld(Cluster((NodeGroup("node", size),), step_s=step_s, link=NetworkLink(bandwidth, latency_s)))


def on(made, work, monkeypatch):
    """The results of `work(comm)` by rank; times are measured on the simulated clock."""
    monkeypatch.setattr(tuning, "clock", lambda: made.now_s)
    return on_simulated(made, work)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("wire", "smaller"), [(tf.float32, 1), (tf.float16, 2)])
def test_a_measured_link_is_that_of_a_ring_on_the_network(size, wire, smaller, monkeypatch):
    for link in on(world(size, latency_s=0.001), lambda comm: measured(comm, wire, 1 << 16), monkeypatch):
        assert link.latency_s == pytest.approx(2 * (size - 1) * 2 * 0.001)  # packets cross two links
        assert link.bytes_per_s == pytest.approx(1e8 * smaller * size / (2 * (size - 1)))


def test_all_ranks_have_the_slowest_ranks_times(monkeypatch):
    times = on(world(3), lambda comm: slowest(comm, [0.1 * comm.rank, 0.5 - 0.1 * comm.rank]), monkeypatch)
    assert times == [[0.2, 0.5]] * 3


class Model(keras.Sequential):
    """A model whose step takes time of the simulated clock."""

    work = staticmethod(lambda: None)

    def train_step(self, data):
        self.work()
        return super().train_step(data)


def model(optimizer=None):
    """300,001 weights: gradients of 1.2 MB."""
    keras.utils.set_random_seed(1)
    dropped = keras.layers.Dropout(0.1, seed=3)
    made = Model([keras.Input((6,)), keras.layers.Dense(37_500, "tanh"), dropped, keras.layers.Dense(1)])
    made.compile(optimizer or keras.optimizers.SGD(0.01), "mse", run_eagerly=True)
    made.optimizer.build(made.trainable_variables)
    return made


def chosen(made, monkeypatch, optimizer=lambda: None, **options):
    """(options, reason, bytes of a bucket, compressor) of all ranks, which agree."""
    models = [model(optimizer()) for _ in range(made.size)]

    def rank(comm):
        own, terms = models[comm.rank], StepTerms(comm)
        own.work = lambda: comm.work(1)
        before = [v.numpy() for v in own.variables]
        made = Tuning(Trainable(flavor_of(own), own), comm, options)
        made.choose(terms, lambda: (tf.constant(X), tf.constant(Y)), split=False)
        for variable, value in zip(own.variables, before, strict=True):
            npt.assert_array_equal(variable, value)
        return made.chosen, made.reason, terms.bucket_bytes, terms.compression and terms.compression.name

    first, *others = on(made, rank, monkeypatch)
    assert others == [first] * len(others)
    return first


# A bucket's latency is 4 or 8 times that of a link. 1 MB takes 10.5 or 14 ms.
@pytest.mark.parametrize(("latency_s", "of_two", "of_three"), [(0, 1, 1), (2e-4, 1, 2), (1e-3, 4, 8), (1.0, 16, 16)])
def test_a_buckets_latency_is_a_tenth_of_the_time_of_its_bytes(latency_s, of_two, of_three, monkeypatch):
    for size, megabytes in ((2, of_two), (3, of_three)):
        options, reason, size_bytes, _ = chosen(world(size, latency_s=latency_s), monkeypatch, bucket_mb="auto")
        assert options == {"bucket_mb": str(megabytes)} and size_bytes == megabytes << 20
        assert reason.startswith(f"buckets of {megabytes} MB (gradients of 1.2 MB; link: ")


def test_nothing_is_measured_for_small_gradients_or_without_auto(monkeypatch):
    monkeypatch.setattr(tuning, "BUCKETS_MB", (2, 4))
    made = world(2)
    options, reason, *_ = chosen(made, monkeypatch, bucket_mb="auto", shard_optimizer="auto")
    assert options == {"bucket_mb": "4", "shard_optimizer": "0"} and made.now_s == 0
    assert reason.endswith("; one bucket (gradients of 1.2 MB)")
    assert chosen(made, monkeypatch, bucket_mb="1", compress="bf16") == ({}, "", 4 << 20, None) and made.now_s == 0


# Gradients take 12 ms, those of 16 bits 6. In one bucket they leave after the backward pass; in buckets of 0.1 MB two
# thirds of the computation hide all but the last, which takes 1 ms.
@pytest.mark.parametrize(
    ("computing_ms", "bucket_mb", "plain_ms", "less_ms"),
    [(20, "4", 32, 26), (60, "4", 72, 66), (12, "0.1", 16, 13), (20, "0.1", 21, 21)],
)
def test_gradients_are_rounded_where_that_saves_a_tenth_of_a_step(
    computing_ms, bucket_mb, plain_ms, less_ms, monkeypatch
):
    made = world(2, 300_001 * 4 / 0.012, step_s=computing_ms / 1000)
    options, reason, _, name = chosen(made, monkeypatch, compress="auto", bucket_mb=bucket_mb)
    kind = "fp16" if less_ms < 0.9 * plain_ms else ""
    assert options == {"compress": kind} and (name or "") == kind
    times = f"a step of about {plain_ms} ms, with fp16 {less_ms} ms; {computing_ms} ms computing"
    assert reason == f"{kind or 'no compression'} ({times})"


def test_a_scaled_loss_is_rounded_to_the_range_of_float32(monkeypatch):
    options, *_ = chosen(
        world(2), monkeypatch, lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), compress="auto"
    )
    assert options == {"compress": "bf16"}


@pytest.mark.parametrize(
    ("optimizer", "options", "sharded", "reason"),
    [
        (keras.optimizers.Adam, {}, "1", "optimizer sharded (slots of 2.4 MB, 1.2 MB on each worker)"),
        (keras.optimizers.SGD, {}, "0", "optimizer not sharded (slots of 0 bytes, less than 1 MB)"),
        (keras.optimizers.Lamb, {}, "0", "optimizer not sharded (--shard-optimizer needs an optimizer that updates"),
        (keras.optimizers.Adam, {"compress": "bf16"}, "0", "optimizer not sharded (--compress bf16)"),
        (keras.optimizers.Adam, {"compress": "fp16", "on_nan": "skip"}, "0", "optimizer not sharded (--compress fp16)"),
    ],
)
def test_an_optimizer_is_sharded_where_that_is_possible_and_slots_are_large(
    optimizer, options, sharded, reason, monkeypatch
):
    monkeypatch.setattr(tuning, "LEAST_SLOTS", 1_000_000)
    found, said, *_ = chosen(world(2), monkeypatch, optimizer, shard_optimizer="auto", **options)
    assert found == {"shard_optimizer": sharded} and said.startswith(reason)


def test_a_sharded_optimizer_with_a_guard_is_not_compressed(monkeypatch):
    monkeypatch.setattr(tuning, "LEAST_SLOTS", 1_000_000)
    found, said, *_ = chosen(
        world(2), monkeypatch, keras.optimizers.Adam, shard_optimizer="auto", compress="auto", on_nan="skip"
    )
    assert found == {"shard_optimizer": "1", "compress": ""} and said.endswith("(--on-nan needs whole gradients)")


def test_training_is_that_of_the_chosen_options(monkeypatch):
    monkeypatch.setattr(tuning, "LEAST_SLOTS", 1_000_000)
    weights = []
    for options in (
        dict.fromkeys(("bucket_mb", "compress", "shard_optimizer"), "auto"),
        {"bucket_mb": "1", "compress": "fp16", "shard_optimizer": "1"},
    ):
        made = world(3, bandwidth=1e6)
        found, *_ = trained(
            "allreduce",
            3,
            lambda: model(keras.optimizers.Adam(0.01)),
            X,
            Y,
            epochs=1,
            options=options,
            probe=False,
            among=lambda size, work, made=made: on(made, work, monkeypatch),
        )
        weights.append(found)
    for auto, by_name in zip(*weights, strict=True):
        npt.assert_array_equal(auto, by_name)
