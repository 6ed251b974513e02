"""A program on one rank, kept between jobs: jobs of the same program reuse its traced functions."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fdt.blobs import Blobs
from fdt.data.source import SinglePass, in_memory
from fdt.job import State, is_on
from fdt.keras import is_of_keras
from fdt.keras.variables import batch_norms, shifted_seed, tensor_variable
from fdt.patches import replace
from fdt.tensors import numbers
from fdt.trainable import is_left_out
from fdt.typing import Array
from hfdt import algorithms
from hfdt.algorithm import BlockAlgorithm, RoundAlgorithm, StepAlgorithm
from hfdt.algorithms import allreduce
from hfdt.collectives import Comm, multicasting
from hfdt.exactness import assigned_state, batchnorm, checks, losses, metrics
from hfdt.exactness.probe_schedule import Probing
from hfdt.worker import nonfinite_guard, per_worker_batches, rounds
from hfdt.worker.blocks import Blocks
from hfdt.worker.compression import NOT_USED, compression_of
from hfdt.worker.exchange import GradientExchange, decide_split
from hfdt.worker.progress import Begin, OnBatch, listening
from hfdt.worker.rounds import Rounds
from hfdt.worker.sharded_model import ShardedModel
from hfdt.worker.sharded_optimizer import ShardedOptimizer
from hfdt.worker.step_context import StepTerms, bucket_bytes
from hfdt.worker.timeline import StepTimeline
from hfdt.worker.tuning import Tuning


@contextlib.contextmanager
def patches(flavor: str) -> Iterator[None]:
    """Patch Keras and TensorFlow for a worker, before a model is built. The patches have no effect outside a step."""
    with losses.installed(flavor), metrics.installed(flavor), assigned_state.installed():
        yield


class RankProgram:
    """A trainable with its algorithm, exchange and patches on one rank. `options`: the job's (hfdt/cli.py)."""

    def __init__(self, trainable: Any, comm: Comm, options: Mapping[str, str]) -> None:
        self.trainable, self.comm, self.options = trainable, comm, dict(options)
        self._stack = contextlib.ExitStack()
        self.algorithm = options.get("rule", algorithms.DEFAULT)
        self.rule = algorithms.make(self.algorithm)
        self.rounds: Rounds | None = None
        self.blocks: Blocks | None = None
        self.shards: ShardedOptimizer | None = None
        self._sent_before = 0
        self.sharded: ShardedModel
        self.epoch_steps: int | None = None  # of the current epoch
        self.per_worker = options.get("batch", "global") == "per-worker" and comm.size > 1
        self.probing = Probing(trainable, comm, self.options, synchronised=isinstance(self.rule, StepAlgorithm))
        self.tuning = Tuning(trainable, comm, options)
        self._at_once = trainable.flavor.steps_per_execution(trainable.model)  # the script's own

    def prepare(
        self, source: Any, validation: Any, rebuilt: Sequence[Any] = (), *, lock_step: bool = False
    ) -> list[str]:
        """Prepare a job's first epoch; the first job also probes and patches. Returns lines for the user. A collective.

        `rebuilt`: sources that each rank built itself, to compare across ranks. `lock_step`: callbacks run after every
        step.
        """
        self._learned: int | None = None  # steps of an epoch, where Keras learns them in the first
        at_once = 1 if lock_step else self._steps_at_once()
        self.trainable.flavor.set_steps_per_execution(self.trainable.model, at_once)
        sources = [s for s in (source, validation) if s is not None]
        idle = self.per_worker or any(checks.may_idle(s, self.comm.size) for s in sources)
        if self.comm.size > 1:
            checks.same_everywhere(self.comm, rebuilt)
        if hasattr(self, "sharded"):
            self.sharded.allow_idle(idle)
            if self.rounds is not None:
                self.rounds.restart()
            if self.sharded.terms.compression is not None:
                self.sharded.terms.compression.restart()
            return self.probing.warm(source, validation)
        return self._attach(source, validation, idle)

    def _steps_at_once(self) -> int:
        """Return the script's own steps per execution, or a divisor of a round: rounds end between executions."""
        if isinstance(self.rule, BlockAlgorithm):
            return 1
        batches = self.rule.batches if isinstance(self.rule, RoundAlgorithm) else 0
        return math.gcd(self._at_once, batches) if batches else self._at_once

    def _attach(self, source: Any, validation: Any, may_idle: bool) -> list[str]:
        (terms, layers, notes), split = self._terms(), False
        if self.comm.size > 1:
            if isinstance(self.rule, StepAlgorithm):
                self._stack.enter_context(batchnorm.synchronised(layers, self.trainable.flavor.name))
            notes += self.probing.first(source, terms, validation)
            split, more = decide_split(self.trainable.model, self.rule, terms, self.probing.asked)
            notes += more
            if isinstance(self.rule, BlockAlgorithm) and not is_on(self.options, "allow_inexact"):
                checks.refuse_inexact(self.probing.asked, terms.sparse, self.trainable)
            self.tuning.choose(terms, source.first_batch, split=split)
            self.options.update(self.tuning.chosen)
        if self.per_worker:
            notes += per_worker_batches.scale(
                self._stack, self.trainable, self.rule, self.options, source, self.comm.size
            )
        exchange, more = self._exchange(terms)
        on_nan, guard_notes = nonfinite_guard.asked(self.trainable, self.options)
        self.sharded = ShardedModel(
            self.trainable,
            terms,
            exchange,
            split=split,
            may_idle=may_idle,
            on_nan=on_nan,
            traced_pass=self.probing.traced_pass,
        )
        self._stack.enter_context(self.sharded.attached())
        if self.blocks is not None:
            with contextlib.suppress(IndexError):  # no data: Keras raises its own error
                more = [self.blocks.settle(self.sharded.own_step, source.first_batch())]
        return notes + guard_notes + more

    def _exchange(self, terms: StepTerms) -> tuple[GradientExchange | Rounds | Blocks, list[str]]:
        """Return the runner of the algorithm, and what the algorithm means for the script."""
        if isinstance(self.rule, StepAlgorithm):
            if self.comm.size == 1 or not is_on(self.options, "shard_optimizer"):
                return GradientExchange(self.rule), []
            self.shards = ShardedOptimizer(self.trainable, self.comm, terms.sparse)
            self._stack.enter_context(self.shards.attached())
            return GradientExchange(self.rule, self.shards.group), []
        if isinstance(self.rule, BlockAlgorithm):
            if self.comm.size == 1:  # there is no other rank
                return GradientExchange(allreduce.rule()), []
            transport = multicasting(self.comm, self.options.get("multicast", "mpi"))
            self._stack.callback(transport.close)
            self.blocks = Blocks(self.rule, self.trainable, self.comm, transport, terms)
            return self.blocks, []
        assert isinstance(self.rule, RoundAlgorithm)
        slots = checks.averaged_slots(self.rule, self.trainable)
        self.rounds = Rounds(self.rule, self.trainable, self.comm, [*terms.averaged.values(), *slots])
        return self.rounds, [rounds.terms_note(self.options["rule"].partition("(")[0], self.rule, self.per_worker)]

    def _terms(self) -> tuple[StepTerms, list[Any], list[str]]:
        trainable = self.trainable
        found = batch_norms(trainable.model)
        local = self.options.get("batch_norm", "sync") == "local"
        layers = [] if local else found
        apart = found and (local or not isinstance(self.rule, StepAlgorithm))
        notes = [batchnorm.OWN_STATISTICS] if apart else []
        flavor, model = trainable.flavor, trainable.model
        own, own_metrics = (is_of_keras(flavor, model, name) for name in ("train_step", "compute_metrics"))
        synchronised = batchnorm.variables(layers) if isinstance(self.rule, StepAlgorithm) else []
        averaged = assigned_state.averaged(trainable.non_trainable, [*trainable.seeds, *synchronised])
        compression = compression_of(trainable, self.options, self.comm.size)
        size = bucket_bytes(self.options)
        timeline = StepTimeline(self._at_once, self.comm.size) if is_on(self.options, "timeline") else None
        terms = StepTerms(
            self.comm,
            own_step=own,
            own_logs=own and own_metrics,
            averaged=averaged,
            bucket_bytes=size,
            compression=compression,
            timeline=timeline,
        )
        return terms, layers, notes if self.comm.size > 1 else [NOT_USED] * ("compress" in self.options)

    def load(self, state: State, blobs: Blobs) -> None:
        """Assign the arrays that `state` contains, and make the ranks' seeds differ. Rank 0 has the script's own."""
        self.probing.load(state, blobs)
        if not state.model.id or isinstance(self.rule, BlockAlgorithm):
            return  # seeds belong to a block, not to a rank
        arrays = blobs.get_arrays(state.model)[len(self.trainable.trainable) :]
        own = {id(v) for v, array in zip(self.trainable.non_trainable, arrays, strict=True) if is_left_out(array)}
        for seed in self.trainable.seeds:
            if id(seed) not in own:
                tensor_variable(seed).assign(shifted_seed(tensor_variable(seed), self.comm.rank))

    def arrays(self) -> tuple[list[Array], list[Array]] | None:
        """Return rank 0's values of the model and of the optimizer; None on other ranks. A collective."""
        sharded = self.shards.arrays() if self.shards is not None else None
        if self.comm.rank:
            return None
        return self.trainable.model_arrays(), self.trainable.optimizer_arrays() if sharded is None else sharded

    def steps(self, source: Any, epoch: int) -> int | None:
        """Return the steps of an epoch over all passes, or None where the number is unknown."""
        count = self._pass_steps(source, epoch)
        return count and count * (self.rounds.passes if self.rounds is not None else 1)

    def _pass_steps(self, source: Any, epoch: int) -> int | None:
        count = source.count(epoch)
        return per_worker_batches.steps(count, self.comm.size) if self.per_worker else count

    def train(self, source: Any, epoch: int, on_batch: OnBatch, begin: Begin | None = None) -> dict[str, float]:
        """Train one epoch, or its rest after `begin`; return its logs over all ranks."""
        self.sharded.counted.assign([begin.samples if begin and self.comm.rank == 0 else 0, 0, 1])
        self.sharded.waited.assign(0.0)
        if self.sharded.guard is not None:
            self.sharded.guard.begin(*((begin.step, begin.skipped) if begin else (0, 0)))
        self.epoch_steps = self.steps(source, epoch) or None
        steps = self._pass_steps(source, epoch) or self._learned
        if self.blocks is not None:
            self._sent_before = self.blocks.sent_bytes
            self.blocks.begin_epoch()
            with contextlib.ExitStack() as stack:  # the runner compiles the parts of a step (hfdt/worker/blocks.py)
                replace(stack, self.trainable.model, "run_eagerly", True)
                return self._fit(source.slices(epoch, 0, 1), epoch, steps, on_batch)
        if self.rounds is None:
            done, data = begin.step if begin else 0, self._dataset(source, epoch)
            data = data.skip(done) if done else data
            with self.sharded.totals.beginning_with(begin.metrics if begin else ()):
                try:
                    logs = self._fit(data, epoch, steps and steps - done, on_batch)
                    self._learned = steps or self.trainable.flavor.learned_steps(self.trainable.model, done)
                    if logs or not done:
                        return logs
                except ValueError as error:  # tf_keras's, where Keras 3 returns none
                    if not (done or self._learned) or "Empty logs" not in str(error):
                        raise
                # The length was unknown, and the commit came after the last step.
                return numbers(self.peek(self.trainable.model.get_metrics_result())[0])
        return self.rounds.epoch(
            self._reader(source, epoch), lambda data, asked: self._fit(data, epoch, steps, asked), on_batch
        )

    def _fit(self, data: Any, epoch: int, steps: int | None, on_batch: OnBatch) -> dict[str, float]:
        model, keras = self.trainable.model, self.trainable.flavor.keras
        callbacks = listening(keras, model, on_batch, epoch + 1, steps)
        span = {"initial_epoch": epoch, "epochs": epoch + 1, "steps_per_epoch": steps}
        fit = keras.Model.fit  # an override of the script's runs in its own process
        history = fit(model, SinglePass(data), shuffle=False, verbose=0, callbacks=callbacks, **span)
        return numbers({name: values[-1] for name, values in history.history.items()})

    def peek(self, logs: Mapping[str, Any]) -> tuple[dict[str, Any], list[Array]]:
        """Return (logs, metric state) over all ranks within an epoch. A collective."""
        whole, values = self.sharded.peek(logs)
        return whole, metrics.arrays(values)

    def evaluate(self, source: Any, epoch: int) -> dict[str, float]:
        """Evaluate on `source` over all ranks; return the logs. A collective."""
        slices = source.slices(epoch, self.comm.rank, self.comm.size)
        steps = source.count(epoch) or None
        with self.sharded.asking():
            return numbers(self.trainable.model.evaluate(SinglePass(slices), steps=steps, verbose=0, return_dict=True))

    def samples(self) -> int:
        """Return the number of samples that this rank has trained on in this epoch."""
        return int(self.sharded.counted[0])

    def skipped(self) -> int:
        """Return the number of steps of this epoch that were skipped because of non-finite gradients."""
        return self.sharded.guard.skipped if self.sharded.guard is not None else 0

    def check_finite(self, epoch: int) -> None:
        """Raise UserError for a non-finite gradient in `epoch`, where it is to end the run."""
        if self.sharded.guard is not None:
            self.sharded.guard.check(epoch)

    def waited(self) -> float:
        """Return the seconds of this epoch that gradients spent in exchanges, without those of BatchNorm and masks."""
        return float(self.sharded.waited) + sum(each.waited_s for each in (self.rounds, self.blocks) if each)

    def sent_bytes(self, steps: int) -> int:
        """Return the bytes that this rank has sent (and received) in `steps` steps of the current epoch.

        A ring sends each buffer 2 (n - 1) / n times.
        """
        size = self.comm.size
        if self.blocks is not None:
            return self.blocks.sent_bytes - self._sent_before
        if self.rounds is not None:
            buffers = self.rounds.sent_bytes
        else:
            buffers = sum(self.sharded.terms.sent_bytes.values()) * steps
        return round(buffers * 2 * (size - 1) / size)

    def close(self) -> None:
        """Remove all patches from the model."""
        self._stack.close()

    def _reader(self, source: Any, epoch: int) -> Callable[[], Any]:
        """Return a function that opens the rank's part of the epoch from its start, each time in the same order."""
        if source.reads_once and self.rounds is not None and self.rounds.passes_in_all > 1:
            kept = in_memory(self._dataset(source, epoch))
            return lambda: kept
        return lambda: self._dataset(source, epoch)

    def _dataset(self, source: Any, epoch: int) -> Any:
        if self.per_worker:
            return per_worker_batches.cut(source.slices(epoch, 0, 1), self.comm.rank, self.comm.size)
        return source.slices(epoch, self.comm.rank, self.comm.size)
