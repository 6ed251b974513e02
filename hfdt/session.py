"""One program on one rank, kept warm: jobs of the same program reuse its traced functions."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from fdt.logs import numbers
from fdt.tensors import Array
from hfdt import batchnorm, checks, forward, losses, metrics, per_worker, rule
from hfdt import split as splitting
from hfdt.comm import Comm
from hfdt.exchange import Exchange
from hfdt.listening import OnBatch, listening
from hfdt.probe import Probe
from hfdt.sharded import Sharded
from hfdt.step import Terms

SEED_STRIDE = 1_000_003  # between ranks' random number generators


@contextlib.contextmanager
def patches(flavor: str) -> Iterator[None]:
    """What a worker changes in Keras and TensorFlow: in place before a model is built, no effect outside a step."""
    with losses.installed(flavor), metrics.installed(flavor), forward.installed():
        yield


class Session:
    """`options`: the job's (rule, batch, batch_norm, fp16_allreduce, allow_inexact, lr_scale, warmup_epochs)."""

    def __init__(self, trainable: Any, comm: Comm, options: Mapping[str, str]) -> None:
        self.trainable, self.comm, self.options = trainable, comm, dict(options)
        self._stack = contextlib.ExitStack()
        self.sharded: Sharded
        self.epoch_steps: int | None = None  # of the epoch at hand
        self.per_worker = options.get("batch", "global") == "per-worker" and comm.size > 1
        self._at_once = trainable.flavor.steps_per_execution(trainable.model)  # the script's own

    # -- preparing -------------------------------------------------------------------------------------------------
    def prepare(
        self, source: Any, validation: Any, rebuilt: Sequence[Any] = (), *, lock_step: bool = False
    ) -> list[str]:
        """Before a job's first epoch; the first time also probe and patch. Returns lines for the user.

        `rebuilt`: sources that each rank built for itself, and that may have come out different. `lock_step`: the
        client is asked after every step.
        """
        self._set_steps_per_execution(1 if lock_step else self._at_once)
        sources = [s for s in (source, validation) if s is not None]
        idle = self.per_worker or any(checks.may_idle(s, self.comm.size) for s in sources)
        if self.comm.size > 1:
            checks.same_everywhere(self.comm, rebuilt)
        if hasattr(self, "sharded"):
            self.sharded.allow_idle(idle)
            return []
        return self._attach(source, idle)

    def _set_steps_per_execution(self, count: int) -> None:
        model = self.trainable.model
        if self.trainable.flavor.steps_per_execution(model) == count:
            return
        if hasattr(model, "_configure_steps_per_execution"):  # tf_keras
            model._configure_steps_per_execution(count)
        else:
            model.steps_per_execution = count
        model.train_function = model.test_function = None  # which hold the count they were made with

    def _attach(self, source: Any, may_idle: bool) -> list[str]:
        terms, layers, notes = self._terms()
        split = False
        if self.comm.size > 1:
            self._stack.enter_context(batchnorm.synchronised(layers, self.trainable.flavor.name))
            notes += self._probe(source, terms)
            split, more = self._decide_split(terms)
            notes += more
            terms.sent_bytes.clear()
        if self.per_worker:
            notes += self._scale_rate(source)
        exchange = Exchange(rule.find(self.options.get("rule", "allreduce")))
        self.sharded = Sharded(self.trainable, terms, exchange, split=split, may_idle=may_idle)
        self._stack.enter_context(self.sharded.attached())
        return notes

    def _terms(self) -> tuple[Terms, list[Any], list[str]]:
        trainable = self.trainable
        found = batchnorm.find(trainable.model)
        local = self.options.get("batch_norm", "sync") == "local"
        layers = [] if local else found
        notes = (
            ["BatchNorm's statistics are each rank's own: numbers differ from a single machine's"]
            if local and found
            else []
        )
        own = type(trainable.model).train_step is trainable.flavor.keras.Model.train_step
        averaged = forward.averaged(trainable.non_trainable, [*trainable.seeds, *batchnorm.variables(layers)])
        fp16 = self.options.get("fp16_allreduce", "") in ("1", "true", "True")
        terms = Terms(self.comm, own_step=own, averaged=averaged, fp16=fp16)
        return terms, layers, notes if self.comm.size > 1 else []

    def _probe(self, source: Any, terms: Terms) -> list[str]:
        try:
            whole = source.first_batch()
        except IndexError:  # no data: Keras has its own words for it
            return []
        local = self.options.get("batch_norm", "sync") == "local" and bool(batchnorm.find(self.trainable.model))
        allow = local or self.options.get("allow_inexact", "") in ("1", "true", "True")
        fp16, terms.fp16 = terms.fp16, False
        findings = Probe(self.trainable, terms, whole).run(allow_inexact=allow)
        terms.reading, terms.fp16 = findings.reading, fp16
        return [] if local else findings.notes

    def _decide_split(self, terms: Terms) -> tuple[bool, list[str]]:
        model = self.trainable.model
        if not model.jit_compile or model.run_eagerly:
            return False, []
        reason = splitting.why_not(self.trainable.flavor, model, terms)
        return not reason, [f"jit_compile is off: {reason}"] if reason else []

    def _scale_rate(self, source: Any) -> list[str]:
        warmup = float(self.options.get("warmup_epochs", "0"))
        steps = per_worker.steps(source.steps, self.comm.size) or 0
        scale = self.options.get("lr_scale", "linear")
        context = per_worker.scaled_rate(self.trainable.model.optimizer, scale, self.comm.size, round(warmup * steps))
        self._stack.enter_context(context)
        ignored = warmup > 0 and not steps
        return ["--warmup-epochs is not used: it is not known how many steps an epoch has"] if ignored else []

    # -- state -----------------------------------------------------------------------------------------------------
    def loaded(self) -> None:
        """New state has been loaded: part the ranks' random numbers. Rank 0 keeps the script's own."""
        for seed in self.trainable.seeds:
            variable = forward.raw(seed)
            shift = tf.one_hot(0, tf.size(variable), on_value=self.comm.rank * SEED_STRIDE, off_value=0, dtype=tf.int64)
            variable.assign(variable + tf.cast(tf.reshape(shift, tf.shape(variable)), variable.dtype))

    # -- running ---------------------------------------------------------------------------------------------------
    def steps(self, source: Any, epoch: int) -> int | None:
        count = source.count(epoch)
        return per_worker.steps(count, self.comm.size) if self.per_worker else count

    def train(self, source: Any, epoch: int, on_batch: OnBatch) -> dict[str, float]:
        """One epoch; its logs over all ranks."""
        self.sharded.counted.assign([0, 0, 1])
        self.sharded.waited.assign(0.0)
        self.epoch_steps = self.steps(source, epoch) or None
        model = self.trainable.model
        callbacks = listening(self.trainable.flavor.keras, model, on_batch, epoch + 1, self.epoch_steps)
        history = model.fit(
            self._dataset(source, epoch),
            initial_epoch=epoch,
            epochs=epoch + 1,
            steps_per_epoch=self.epoch_steps,
            shuffle=False,
            verbose=0,
            callbacks=callbacks,
        )
        return numbers({name: values[-1] for name, values in history.history.items()})

    def peek(self, logs: Mapping[str, Any]) -> tuple[dict[str, Any], list[Array]]:
        """(logs, metric state) of all ranks in the middle of an epoch."""
        whole, values = self.sharded.peek(logs)
        return whole, metrics.arrays(values)

    def evaluate(self, source: Any, epoch: int) -> dict[str, float]:
        slices = source.slices(epoch, self.comm.rank, self.comm.size)
        steps = source.count(epoch) or None
        return numbers(self.trainable.model.evaluate(slices, steps=steps, verbose=0, return_dict=True))

    def samples(self) -> int:
        """Samples this rank has trained on in this epoch."""
        return int(self.sharded.counted[0])

    def waited(self) -> float:
        """Seconds of this epoch that this rank's gradients waited for the other ranks', the exchange included."""
        return float(self.sharded.waited)

    def step_bytes(self) -> int:
        """Bytes this rank sends (and receives) a step: a ring passes each buffer on 2 (n - 1) / n times."""
        size = self.comm.size
        return round(sum(self.sharded.terms.sent_bytes.values()) * 2 * (size - 1) / size)

    def close(self) -> None:
        """Take everything off the model."""
        self._stack.close()

    def _dataset(self, source: Any, epoch: int) -> Any:
        if self.per_worker:
            return per_worker.cut(source.slices(epoch, 0, 1), self.comm.rank, self.comm.size)
        return source.slices(epoch, self.comm.rank, self.comm.size)
