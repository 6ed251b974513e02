"""The runner of algorithms that divide every batch into blocks (hfdt/algorithm.py, BlockAlgorithm).

Each rank computes the gradients of its blocks; the algorithm exchanges and sums them; one update applies the sum. A
block is Keras's own training step on some rows of the batch, compiled once and run for one block after another. The
exchange is NumPy. State that a block's forward pass assigns is sent with its gradient. Random numbers belong to the
block, not the rank, since several ranks must compute the same block alike.

Worker k computes every block of which it is an owner; a step lasts as long as the slowest worker's part. So the sizes
of blocks minimise the largest load_k / speed_k. This is a linear program, or a game between blocks and workers, solved
to some 3 % by multiplicative weights (Arora, Hazan and Kale 2012, section 3.2).
"""

import contextlib
import time
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from fdt.data import source
from fdt.errors import CaptureError, UserError
from fdt.keras.variables import assign, call_converted, shifted_seed, tensor_variable
from fdt.ops import flat_logs
from fdt.typing import Tensor, Variable
from hfdt.algorithm import BlockAlgorithm, BlockPlan
from hfdt.collectives import Comm, MulticastTransport
from hfdt.exactness import assigned_state
from hfdt.worker import step_context as steps
from hfdt.worker.exchange import Apply, Deferred
from hfdt.worker.step_context import StepContext, StepTerms

ROUNDS = 4000
RATE = 0.05
PARTS = 1 << 20  # sizes are whole numbers of these parts of a batch, so that they are equal on every rank


def block_sizes(owners: Sequence[tuple[int, ...]], speeds: Sequence[float]) -> list[int]:
    """Return the sizes of blocks that let the workers finish at the same time, in units of 1 / PARTS of a batch.

    `owners`: the workers that compute each block. `speeds`: of each worker, above 0, in any unit.
    """
    speed = np.asarray(speeds, float) / np.sum(speeds)
    does = np.zeros([len(speed), len(owners)])
    for block, workers in enumerate(owners):
        does[list(workers), block] = 1 / speed[list(workers)]
    does /= does.max()
    total, weights = np.zeros(len(owners)), np.full(len(owners), 1 / len(owners))
    slow = np.full(len(speed), 1 / len(speed))
    for _ in range(ROUNDS):
        # Optimistic updates (Rakhlin and Sridharan 2013): a trial step, then the step. They converge much faster.
        next_slow = _moved(slow, RATE * (does @ weights))
        next_weights = _moved(weights, -RATE * (slow @ does))
        slow, weights = _moved(slow, RATE * (does @ next_weights)), _moved(weights, -RATE * (next_slow @ does))
        total += weights
    ends = np.rint(np.cumsum(total) / total.sum() * PARTS).astype(int)
    return [int(size) for size in np.diff(ends, prepend=0)]


def loads(owners: Sequence[tuple[int, ...]], sizes: Sequence[int], workers: int) -> list[float]:
    """Return the part of a batch that each worker computes, in 0..1."""
    return [
        sum(size for block, size in zip(owners, sizes, strict=True) if k in block) / sum(sizes) for k in range(workers)
    ]


def _moved(mixed: npt.NDArray[np.float64], by: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    moved = mixed * np.exp(by - by.max())
    normed: npt.NDArray[np.float64] = moved / moved.sum()
    return normed


MEASURED_WORDS = 250_000


class Blocks:
    """The runner of `rule` among the ranks of `comm`. Its `apply` is passed to `Flavor.replace_apply`."""

    def __init__(
        self, rule: BlockAlgorithm, trainable: Any, comm: Comm, transport: MulticastTransport, terms: StepTerms
    ) -> None:
        compiled = not trainable.model.run_eagerly
        self._trainable, self._comm, self._transport, self._terms = trainable, comm, transport, terms
        self._seeds: list[Variable] = [tensor_variable(v) for v in trainable.seeds]
        self._metrics: list[Variable] = [tensor_variable(v) for v in trainable.metrics]
        self._put_off: list[Deferred] = []
        self._touched: list[Variable] = []
        self._block: Any = self._block_step
        self._update: Any = self._apply_sum
        if compiled:
            self._block = tf.function(self._block_step, reduce_retracing=True, autograph=False)
            self._update = tf.function(self._apply_sum, autograph=False)
        self._rule, self.plan, self.redundancy = rule, BlockPlan([], _never, int), 0
        self._ends: list[int] = []  # boundaries of the blocks: the first one's start, then each one's end
        self.begin_epoch()

    def begin_epoch(self) -> None:
        self._check_next, self.waited_s = True, 0.0

    def apply(self, original: Apply, gradients: Sequence[Tensor], variables: Sequence[Any]) -> None:
        """Replace the outermost optimizer's own apply: store the step until the sum has arrived."""
        step = steps.current()
        if step is None:
            original(list(gradients), list(variables))
            return
        self._put_off.append(Deferred(list(gradients), list(variables), original))

    def settle(self, train_step: Any, batch: Any) -> str:
        """Choose redundancy and block sizes, for which the first batch is needed; return a line for the user."""
        rule, n = self._rule, self._comm.size
        chosen = rule.redundancy or self._fastest(train_step, batch)
        try:
            self.plan, self.redundancy = rule.plan(n, chosen), chosen
        except ValueError as error:
            raise UserError(str(error)) from None
        sizes = self._sizes(train_step, batch)
        self._ends = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
        return self._terms_note(sizes)

    def train(self, train_step: Any, batch: Any) -> tuple[Any, int]:
        """Run one training step; return Keras's logs and the number of samples that this rank counts."""
        before = [tf.identity(v) for v in self._terms.averaged.values()]
        seeds = [tf.identity(v) for v in self._seeds]
        own, parts = {}, []
        for number, owners in enumerate(self.plan.owners):
            if self._comm.rank not in owners:
                continue
            assign(self._terms.averaged.values(), before)
            between = self._ends[number], self._ends[number + 1], self._ends[-1]
            own[number], logs, samples = self._one(train_step, batch, number, between, seeds, owners)
            parts.append((logs, samples))
        self._finish_seeds(seeds)
        if self._check_next and self.plan.needs_same_bits:
            self._check_bits(own)
        began = time.perf_counter()
        try:
            total = self.plan.total(own, self._transport)
        except ValueError as error:
            raise UserError(str(error)) from None
        self.waited_s += time.perf_counter() - began
        self._update(tf.constant(total))
        return self._terms.log_sources.whole(parts), sum(samples for _, samples in parts)

    # -- one block -----------------------------------------------------------------------------------------------------
    def _one(
        self,
        train_step: Any,
        batch: Any,
        number: int,
        between: tuple[int, int, int],
        seeds: list[Tensor],
        owners: tuple[int, ...],
    ) -> tuple[Any, Any, int]:
        rows, share = source.cut_between(batch, *between)
        assign(self._seeds, [shifted_seed(seed, number) for seed in seeds])
        counts = owners[number % len(owners)] == self._comm.rank  # a block's samples count in one rank's metrics only
        self._train_step = train_step
        vector, logs = self._block(rows, share, tf.constant(counts))
        return vector.numpy(), logs, int(share[0]) if counts else 0

    def _block_step(self, rows: Any, share: Tensor, counts: Tensor) -> tuple[Tensor, Any]:
        step = StepContext(self._terms, share, alone=True)
        held = [tf.identity(v) for v in self._metrics]
        self._put_off = []
        with steps.entered(step):
            logs = flat_logs(call_converted(self._trainable.flavor.name, self._train_step, rows))
        if len(self._put_off) > 1:
            raise CaptureError(
                "--algorithm coded updates the model once a step, when the sum has arrived. Received: a train_step "
                f"that applies gradients {len(self._put_off)} times; use --algorithm allreduce"
            )
        keeps = tf.logical_and(counts, share[0] > 0)
        for variable, before in zip(self._metrics, held, strict=True):
            variable.assign(tf.where(keeps, variable, before))
        self._touched = step.take_touched()
        gradients = [g for put_off in self._put_off for g in put_off.gradient if g is not None]
        parts = [step.weigh(tf.convert_to_tensor(g), step.weight(g.dtype)) for g in gradients]
        parts += assigned_state.weigh_touched(step, self._touched)
        dtype = tf.float64 if any(p.dtype == tf.float64 for p in parts) else tf.float32
        return tf.concat([tf.reshape(tf.cast(p, dtype), [-1]) for p in parts], axis=0), logs

    def _finish_seeds(self, before: list[Tensor]) -> None:
        """Set the seeds independently of which blocks this rank computed: every block has drawn equally often."""
        last = max(b for b, owners in enumerate(self.plan.owners) if self._comm.rank in owners)
        assign(self._seeds, [v - shifted_seed(seed, last) + seed for v, seed in zip(self._seeds, before, strict=True)])

    # -- the sum -------------------------------------------------------------------------------------------------------
    def _apply_sum(self, total: Tensor) -> None:
        like = [g for put_off in self._put_off for g in put_off.gradient if g is not None] + self._touched
        parts = tf.split(total, [int(np.prod(t.shape)) for t in like])
        values = iter([tf.cast(tf.reshape(p, t.shape), t.dtype) for p, t in zip(parts, like, strict=True)])
        for put_off in self._put_off:
            gradient = [None if g is None else next(values) for g in put_off.gradient]
            put_off.apply(gradient, put_off.variables)
        assigned_state.write(self._touched, list(values))

    def _check_bits(self, own: dict[int, Any]) -> None:
        """Compare checksums once an epoch. Raises UserError where two ranks computed different bits for one block."""
        self._check_next = False
        table = np.zeros([len(self.plan.owners), self._comm.size], np.int64)
        for number, vector in own.items():
            table[number, self._comm.rank] = zlib.crc32(vector.tobytes())
        table = np.asarray(self._comm.sum([tf.constant(table)], "hfdt.blocks.bits")[0])
        for number, owners in enumerate(self.plan.owners):
            if len({table[number, k] for k in owners}) > 1:
                raise UserError(
                    "--placement paper needs ranks that compute the same bits for the same block, but ranks "
                    f"{', '.join(map(str, owners))} differ (different processors, or random numbers of TensorFlow); "
                    "use --placement groups or cyclic"
                )

    # -- how the work is divided ---------------------------------------------------------------------------------------
    def _sizes(self, train_step: Any, batch: Any) -> list[int]:
        """Return the size of each block, the same on every rank."""
        speeds, owners = self._rule.speeds, self.plan.owners
        if speeds == ():
            return [1] * len(owners)
        if speeds is None:
            mine = np.zeros(self._comm.size)
            mine[self._comm.rank] = 1 / self._compute_s(train_step, batch, self._comm.rank, self._comm.size)
            speeds = tuple(np.asarray(self._comm.sum([tf.constant(mine)], "hfdt.blocks.speeds")[0]))
        if len(speeds) != self._comm.size:
            raise UserError(
                f"--worker-shares must have a number for each of {self._comm.size} workers. Received: {len(speeds)}"
            )
        found = block_sizes(owners, speeds) if self._comm.rank == 0 else [0] * len(owners)
        agreed = self._comm.sum([tf.constant(found, tf.int64)], "hfdt.blocks.sizes")[0]
        return [int(size) for size in np.asarray(agreed)]

    # -- redundancy ----------------------------------------------------------------------------------------------------
    def _fastest(self, train_step: Any, batch: Any) -> int:
        """Return the r with the least T_calc(r) + T_comm(r), both measured; the same on every rank."""
        n, word_s = self._comm.size, self._word_s()
        words = sum(int(np.prod(v.shape)) for v in self._trainable.trainable)
        plans, costs = dict[int, BlockPlan](), list[float]()
        for r in range(1, n):
            with contextlib.suppress(ValueError):
                plans[r] = self._rule.plan(n, r)
        for plan in plans.values():
            own = [block for block, owners in enumerate(plan.owners) if self._comm.rank in owners]
            block_s = self._compute_s(train_step, batch, own[0], len(plan.owners))
            costs.append(len(own) * block_s + plan.sent_words(words) * word_s)
        total = np.asarray(self._comm.sum([tf.constant(costs, tf.float64)], "hfdt.blocks.cost")[0])
        return list(plans)[int(np.argmin(total))]

    def _compute_s(self, train_step: Any, batch: Any, block: int, count: int) -> float:
        """Measure the seconds of one of `count` equal blocks; the first of two runs traces. Restores all state."""
        trainable = self._trainable
        variables = [tensor_variable(v) for v in [*trainable.non_trainable, *trainable.metrics]]
        kept = [tf.identity(v) for v in variables]
        seeds = [tf.identity(v) for v in self._seeds]
        for _ in range(2):
            began = time.perf_counter()
            self._one(train_step, batch, block, (block, block + 1, count), seeds, (0,))
        seconds = time.perf_counter() - began
        assign(variables, kept)
        return seconds

    def _word_s(self) -> float:
        """Measure the seconds per word when every rank multicasts to all."""
        packet, everyone = np.zeros(MEASURED_WORDS, np.float32), tuple(range(self._comm.size))
        for _ in range(2):  # the first one opens connections
            began = time.perf_counter()
            for root in everyone:
                self._transport.multicast(packet, root, everyone)
        return (time.perf_counter() - began) / MEASURED_WORDS

    def _terms_note(self, sizes: Sequence[int]) -> str:
        n, r, g = self._comm.size, self.redundancy, sum(int(np.prod(v.shape)) for v in self._trainable.trainable)
        count = len(self.plan.owners)
        uncoded = (n - r) * count * g // n
        sent = self.plan.sent_words(g)
        mega = 4 / 1e6
        note = (
            f"coded: {count} blocks per batch, each on {r} of {n} workers; each sends {sent * mega:.3g} MB per step "
            f"(without coding {uncoded * mega:.3g} MB; SSGD, which sums gradients first, {g * mega:.3g} MB)"
        )
        if self._rule.speeds == ():
            return note
        each = loads(self.plan.owners, sizes, n)
        return f"{note}; the workers' shares of a batch: {', '.join(f'{load:.0%}' for load in each)}"

    @property
    def sent_bytes(self) -> int:
        return self._transport.sent_bytes


def _never(own: Any, transport: Any) -> Any:
    raise AssertionError("no plan yet")
