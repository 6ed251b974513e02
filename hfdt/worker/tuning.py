"""The choices for options that are `auto`: sharding, bucket size and compression, made before the first step.

They follow from the model and from measured times. Every time is that of the slowest rank, so all ranks choose alike.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from fdt import ops
from fdt.data.source import cut_batch
from fdt.errors import UserError
from fdt.job import is_on
from fdt.keras.variables import call_converted, is_loss_scaled, tensor_variable, variables_of_slots
from fdt.report import milliseconds, nbytes
from fdt.typing import Tensor
from hfdt.collectives import Comm
from hfdt.exactness.gradient_pass import deferred_updates
from hfdt.exactness.untouched import Untouched
from hfdt.worker.compression import compression_of
from hfdt.worker.exchange import Deferred
from hfdt.worker.sharded_optimizer import check_elementwise
from hfdt.worker.step_context import AUTO, DEFAULT_BUCKET_MB, StepContext, StepTerms, bucket_bytes

BUCKETS_MB = (1, 2, 4, 8, 16)
LATENCY_SHARE = 0.1  # of the time of a bucket's bytes, that the latency of its exchange may take
LEAST_SAVED = 0.1  # of a step, for which gradients are rounded
BACKWARD = 2 / 3  # of forward and backward pass: the latter differentiates by the inputs and by the weights
# On two ranks 32 MB of memory each, a tenth of what TensorFlow's import takes. Smaller slots are updated in less than
# 20 ms, and no computation hides the all_gather of the weights.
LEAST_SLOTS = 64_000_000
RUNS, EXCHANGES, SMALL, LARGE = 3, 8, 1 << 8, 1 << 18  # of a measurement; elements of float32

clock = time.perf_counter


@dataclass(frozen=True)
class Link:
    """A measured all-reduce: n bytes of gradients in k buckets take k * `latency_s` + n / `bytes_per_s`."""

    latency_s: float
    bytes_per_s: float

    def seconds(self, size: float, exchanges: int) -> float:
        """Return the time of `size` bytes in `exchanges` buckets."""
        return exchanges * self.latency_s + size / self.bytes_per_s

    def __str__(self) -> str:
        speed = f"{nbytes(self.bytes_per_s)}/s" if math.isfinite(self.bytes_per_s) else "no limit of bytes"
        return f"link: {milliseconds(self.latency_s)}, {speed}"


class Tuning:
    """The choice of a job's options that are `auto`.

    Args:
        trainable: The model with its variables.
        comm: The ranks.
        options: The job's options.

    Attributes:
        chosen: The values of the options.
        reason: A line about the choices for the user.
    """

    def __init__(self, trainable: Any, comm: Comm, options: Mapping[str, str]) -> None:
        self._trainable, self._comm, self._options = trainable, comm, dict(options)
        self._link = Link(0.0, math.inf)  # not measured
        self._size, self._half = 0, False  # bytes of the gradients; none of them has more than 16 bits
        self.chosen: dict[str, str] = {}
        self.reason = ""

    def choose(self, terms: StepTerms, first_batch: Callable[[], Any], *, split: bool) -> None:
        """Choose, and change `terms`. A collective, called after the probe, which finds sparse gradients.

        Args:
            terms: The terms of the job's steps.
            first_batch: Returns a global batch.
            split: XLA compiles the forward and backward pass.
        """
        choices: dict[str, Callable[[], tuple[str, str]]] = {
            "shard_optimizer": self._sharding,
            "bucket_mb": self._bucket,
            "compress": lambda: self._compression(lambda: self._computing_s(terms, first_batch(), split=split)),
        }
        asked = [name for name in choices if self._options.get(name) == AUTO]
        if not asked:
            return
        dense = [v for v in map(tensor_variable, self._trainable.trainable) if id(v) not in terms.sparse]
        self._size, self._half = sum(map(ops.nbytes, dense)), all(v.dtype.size < 4 for v in dense)
        if "compress" in asked or ("bucket_mb" in asked and self._size > BUCKETS_MB[0] << 20):
            self._link = self._measured(tf.float32)
        reasons = []
        for name in asked:
            self._options[name], reason = choices[name]()
            reasons.append(reason)
        self.chosen, self.reason = {name: self._options[name] for name in asked}, "; ".join(reasons)
        terms.settle(bucket_bytes(self._options), compression_of(self._trainable, self._options, self._comm.size))

    def _sharding(self) -> tuple[str, str]:
        compress = self._options.get("compress", "")
        if compress not in ("", AUTO, "fp16") or (compress == "fp16" and self._options.get("on_nan")):
            return "0", f"optimizer not sharded (--compress {compress})"
        try:
            check_elementwise(self._trainable)
        except UserError as error:
            return "0", f"optimizer not sharded ({error})"
        weights_of = variables_of_slots(self._trainable.model.optimizer, self._trainable.trainable)
        slots = [tensor_variable(v) for v in self._trainable.optimizer if id(v) in weights_of]
        size = sum(map(ops.nbytes, slots))
        if size < LEAST_SLOTS:
            return "0", f"optimizer not sharded (slots of {nbytes(size)}, less than {nbytes(LEAST_SLOTS)})"
        return "1", f"optimizer sharded (slots of {nbytes(size)}, {nbytes(size / self._comm.size)} on each worker)"

    def _bucket(self) -> tuple[str, str]:
        if self._size <= BUCKETS_MB[0] << 20:
            return str(DEFAULT_BUCKET_MB), f"one bucket (gradients of {nbytes(self._size)})"
        link = self._link
        full = (mb for mb in BUCKETS_MB if link.latency_s <= LATENCY_SHARE * (mb << 20) / link.bytes_per_s)
        mb = next(full, BUCKETS_MB[-1])
        return str(mb), f"buckets of {mb} MB (gradients of {nbytes(self._size)}; {link})"

    def _compression(self, computing_s: Callable[[], float]) -> tuple[str, str]:
        sharded = is_on(self._options, "shard_optimizer")
        if sharded and self._options.get("on_nan"):
            return "", "no compression (--on-nan needs whole gradients)"
        if self._half:
            return "", "no compression (no gradient has 32 bits)"
        scaled = any(map(is_loss_scaled, self._trainable.flavor.optimizers(self._trainable.model)))
        kind, wire = ("bf16", tf.bfloat16) if scaled else ("fp16", tf.float16)  # a scaled gradient may be above 65504
        links = {1: self._link, 2: self._measured(wire)}  # by how much smaller a gradient is
        try:
            computing = computing_s()
        except IndexError:  # no data: Keras raises its own error
            return "", "no compression (no data)"
        gather = self._link.seconds(self._size / 2, self._buckets(1)) if sharded else 0.0
        plain, less = (
            gather + step_s(computing, link, self._size / (2 if sharded else 1), self._buckets(smaller))
            for smaller, link in links.items()
        )
        without, smaller_s, alone = map(milliseconds, (plain, less, computing))
        times = f"a step of about {without}, with {kind} {smaller_s}; {alone} computing"
        if less > (1 - LEAST_SAVED) * plain:
            return "", f"no compression ({times})"
        return kind, f"{kind} ({times})"

    def _buckets(self, smaller: int) -> int:
        each = bucket_bytes(self._options)
        return max(1, math.ceil(self._size / smaller / each)) if each else 1

    # -- measuring -------------------------------------------------------------------------------------------------
    def _measured(self, wire: Any) -> Link:
        return measured(self._comm, wire, min(LARGE, max(2 * SMALL, self._size // 4)))

    def _computing_s(self, terms: StepTerms, batch: Any, *, split: bool) -> float:
        """Return the seconds of the slowest rank's forward and backward pass. No variable changes. A collective."""
        comm, trainable = self._comm, self._trainable
        whole = self._options.get("batch") == "per-worker"
        mine, share = cut_batch(batch, 0, 1) if whole else cut_batch(batch, comm.rank, comm.size)
        train_step = trainable.model.train_step

        def gradients() -> list[Tensor]:
            made: list[Deferred] = []
            with deferred_updates(trainable, StepContext(terms, share, compiled=split, alone=True, deferred=made)):
                call_converted(trainable.flavor.name, train_step, mine)
            return [g for each in made for g in each.gradient if g is not None]

        with Untouched(trainable, moved=False):
            traced = not trainable.model.run_eagerly
            return slowest(comm, [_seconds_of(comm, gradients, traced=traced, jit_compile=split)])[0]


def step_s(computing_s: float, link: Link, size: float, buckets: int) -> float:
    """Return the time of a step whose buckets leave during the backward pass, the last one at its end.

    The update is not counted. `computing_s`: forward and backward pass. `size`: bytes of the gradients.
    """
    exchange = link.seconds(size, buckets)
    return computing_s + max(exchange - BACKWARD * computing_s, exchange / buckets)


def measured(comm: Comm, wire: Any, large: int) -> Link:
    """Measure the all-reduce of gradients of float32 that are sent as dtype `wire`. A collective.

    `large`: elements of the larger of two measured exchanges.
    """

    def seconds(elements: int, exchanges: int) -> float:
        tensor = tf.zeros([elements])  # captured: TensorFlow would add a constant of the graph only once

        def added() -> Tensor:
            total = tensor
            for i in range(exchanges):
                total = tf.cast(comm.sum([tf.cast(total, wire)], f"hfdt.link.{i}")[0], tf.float32)
            return total

        return _seconds_of(comm, added) / exchanges

    less, more = slowest(comm, [seconds(SMALL, EXCHANGES), seconds(large, 1)])
    per_byte = max(0.0, more - less) / (4 * (large - SMALL))
    return Link(max(0.0, less - 4 * SMALL * per_byte), 1 / per_byte if per_byte else math.inf)


def slowest(comm: Comm, times_s: Sequence[float]) -> list[float]:
    """Return the largest of the ranks' times, element by element. A collective."""
    (gathered,) = comm.all_gather([tf.constant(times_s, tf.float64)], "hfdt.times")
    found: list[float] = tf.reduce_max(tf.reshape(gathered, [comm.size, -1]), 0).numpy().tolist()
    return found


def _seconds_of(comm: Comm, run: Callable[[], Any], *, traced: bool = True, jit_compile: bool = False) -> float:
    """Return the seconds of the fastest of some runs: other processes disturb it least."""
    traced &= not getattr(comm, "eager_only", False)
    call = tf.function(run, autograph=False, jit_compile=jit_compile) if traced else run
    times = []
    for _ in range(1 + RUNS):  # the first traces
        begin = clock()
        found = [leaf for leaf in tf.nest.flatten(call(), expand_composites=True) if leaf is not None]
        if found:
            min(found, key=ops.nbytes).numpy()  # waits for a device
        times.append(clock() - begin)
    return min(times[1:])
