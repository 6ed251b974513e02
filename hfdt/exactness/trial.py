"""A training step without its update, run on a whole batch and in slices for a comparison (hfdt/exactness/probe.py)."""

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from fdt.compat.tensorflow import context
from fdt.data import source
from fdt.keras.variables import tensor_variable
from fdt.typing import Tensor
from hfdt.collectives import Comm
from hfdt.collectives.base import SoloComm
from hfdt.exactness import adjoints, assigned_state
from hfdt.exactness.float64 import SUM_SCOPE, InFloat64
from hfdt.exactness.gradient_pass import GradientPass, any_rows
from hfdt.exactness.metrics import MetricTotals, metric_objects, result_of
from hfdt.exactness.probe_rows import cost_of_a_row
from hfdt.exactness.script_lines import made_by_script
from hfdt.exactness.untouched import counters, later_steps, others, without_randomness
from hfdt.worker.exchange import StepGroup
from hfdt.worker.step_context import Reading, StepContext, StepTerms

# Measured in float64, rows permuted: 2e-13 at most (ResNet50). An operation that stays in float32 rounds now and then
# to another neighbour, which a deep network magnifies to 1e-5. COARSE: a step in float32 throughout.
EXACT, ROUNDED, COARSE, HALF = 1e-8, 1e-4, 5e-4, 5e-2
OVER_RANKS = 2e-5  # relative, of a float32 state that is added or averaged over ranks
_COLUMNS, _PROJECTIONS = 256, 8


@dataclass
class Result:
    """The results of one step.

    Attributes:
        gradients: The gradients, large ones as sketches.
        metrics: The metrics' states over all ranks.
        state: The values of `StepTrial.held`, in which every rank's value counts.
        allowances: The relative difference that rounding may cause in each value of `state`.
        logs: The numbers that the step returns by name: (mean over ranks by weight, sum over ranks).
        results: The local results of the metrics that `LogSources.metrics` names, and the local logs of that name.
        seen: The tensors that the trial recorded.
        adjoints: Of `StepTrial.added`, what `adjoints.over_ranks` gives, added over ranks.
    """

    gradients: list[Tensor]
    metrics: list[Tensor]
    state: list[Tensor]
    allowances: list[float]
    logs: dict[str, tuple[float, float]]
    results: dict[str, tuple[Any, float]]
    seen: Sequence[Tensor] = ()
    adjoints: Tensor = ()


class Scoped:
    """A Comm whose sums can be identified in a graph by their name scope."""

    def __init__(self, comm: Comm) -> None:
        self._comm, self.rank, self.size = comm, comm.rank, comm.size

    def sum(self, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
        with tf.name_scope(SUM_SCOPE):
            return self._comm.sum(tensors, name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)


class StepTrial:
    """The step of `trainable`, with losses read by `terms.reading`.

    It is traced once, for batches of any size, and computed in float64. It runs eagerly in three cases: a script that
    runs eagerly cannot be traced, its graph cannot be rewritten, or ranks are threads of one process.

    `by_script`: the script made an operation of the traced step. `counts`: the variables of one number that the step
    reads and that may count steps, such as the number of updates; `later`: the numbers by which they are moved.
    `written`: the lines that assign variables, by the variable's id. `added`: the lines of the script's sums and means,
    where losses are read as means.

    `tolerance`: the largest relative difference (L2 norm of all gradients together) between equal steps.

    Args:
        trainable: The model with its variables.
        terms: The terms of the job's steps.
        batch: A global batch; other batches differ from it in their number of rows only.
        watched: Called with a traced step's batch; returns a context whose value is a list, which the step fills with
            tensors for `Result.seen`.
    """

    def __init__(self, trainable: Any, terms: StepTerms, batch: Any, watched: Any = None) -> None:
        self._trainable, self.terms, self._reset = trainable, terms, trainable.model.reset_metrics
        self.gradient_pass = GradientPass(trainable, watched)
        self.row_cost = math.inf
        self._still = self.by_script = False
        self.written: dict[int, str] = {}
        self._log_names: list[str] = []
        self.added: list[str] = []
        self.counts: list[Any] = []
        self.later: tuple[int, ...] = ()
        self.tolerance = self._trace(batch)

    def replace_randomness(self) -> None:
        """In later eager runs, replace random functions during a step, in all threads."""
        self._still = True

    def _trace(self, batch: Any) -> float:
        terms = replace(self.terms, comm=Scoped(self.terms.comm))
        coarse = HALF if is_half(self._trainable.model) else COARSE
        if getattr(self.terms.comm, "eager_only", False):
            return coarse
        try:
            self.gradient_pass.trace(terms, batch)
        except Exception:
            if not self._trainable.model.run_eagerly:
                raise
            return coarse
        if terms.seen_scalar_loss:
            self.terms.note_scalar_loss()
        graph = self.gradient_pass.traced.graph
        captured = {id(outer) for outer, _ in graph.captures}
        written = self.gradient_pass.written
        steps_of = {id(tensor_variable(v)) for v in self._trainable.optimizer} | set(written)
        self.counts = [v for v in counters(self._trainable) if id(v.handle) in captured and id(v) in steps_of]
        self.later = later_steps(graph) if self.counts else ()
        self.row_cost, self.by_script = cost_of_a_row(graph), made_by_script(graph)
        function = tf.function(functools.partial(self._gradients, terms), autograph=False)
        spec = tf.nest.map_structure(any_rows, batch)
        try:
            self._function = InFloat64(function.get_concrete_function(spec, tf.TensorSpec([2], tf.int64)))
            with _unoptimized():
                self._function.check(*_leaves(batch), tf.zeros([2], tf.int64))
        except (ValueError, tf.errors.OpError):  # an operation that cannot be converted to float64
            return coarse
        return ROUNDED if self._function.rounded else EXACT

    def sliced(self, batch: Any) -> Result:
        """Run each rank on its slice, with the exchange of training. A collective."""
        comm = self.terms.comm
        mine, share = source.cut_batch(batch, comm.rank, comm.size)
        return self._run(self.terms, mine, share, alone=False)

    def alone(self, batch: Any) -> Result:
        """Run the whole batch on this rank."""
        total = tf.cast(source.rows(batch), tf.int64)
        terms = replace(self.terms, comm=SoloComm(), reading=Reading.MEAN, averaged={}, sent_bytes={})
        return self._run(terms, batch, tf.stack([total, total]), alone=True)

    def _run(self, terms: StepTerms, batch: Any, share: Tensor, *, alone: bool) -> Result:
        self._reset()
        totals = MetricTotals(terms.comm, self._trainable.metrics)
        totals.started()
        if self.tolerance < COARSE:
            run = self._function.alone if alone else self._function.sliced
            with _unoptimized():
                out = run(*_leaves(batch), share)
        else:
            with without_randomness(self._trainable.flavor.name) if self._still else contextlib.nullcontext():
                out = self._gradients(terms, batch, share)
            if terms.seen_scalar_loss:
                self.terms.note_scalar_loss()
        count, watched = self._sizes
        first = count + watched
        logs, results = self._numbers(terms, share, out[first : first + len(self._log_names)])
        added = out[first + len(self._log_names) :]
        if int(share[0]) == 0:
            totals.load(totals._start)
        state, allowances = self._state(terms.comm)
        sums = terms.comm.sum(added, "hfdt.adjoints")[0] if added else ()
        return Result(out[:count], totals.total(), state, allowances, logs, results, out[count:first], sums)

    def _gradients(self, terms: StepTerms, batch: Any, share: Tensor) -> list[Tensor]:
        """Run the step.

        Returns:
            The sketches of the gradients' means over ranks, the watched tensors, the logs, the sums of adjoints.
        """
        if tf.executing_eagerly():
            found = self.gradient_pass.run(terms, batch, share)
        else:
            found = self.gradient_pass.call(StepContext(terms, share), batch, share)
        means = [StepGroup(found.context).mean([_sketch(g) for g in each.gradient]) for each in found.deferred]
        gradients = [tf.convert_to_tensor(g) for mean in means for g in mean if g is not None]
        assigned_state.flush(found.context)
        self.written.update(found.context.written)
        logs = {} if terms.own_logs else found.numbers
        self._sizes, self._log_names = (len(gradients), len(found.watched)), list(logs)
        weight, self.added = found.context.weight(tf.float64), found.lines
        mean = self.terms.reading is Reading.MEAN
        otherwise = tf.sign(weight) if mean else weight * found.context.share(tf.float64)
        sums = [adjoints.over_ranks(each, weight, otherwise) for each in found.added]
        return [*gradients, *found.watched, *logs.values(), *sums]

    @property
    def held(self) -> list[tuple[Any, str]]:
        """The variables that the step assigns, besides metrics and random generators, with the assigning line.

        Gradients' updates do not count. Where the step runs eagerly, ranks may assign different variables: all count.
        """
        updated = [] if self.terms.own_step else [*self._trainable.trainable, *self._trainable.optimizer]
        candidates = [(v, self.written.get(id(tensor_variable(v)))) for v in (*others(self._trainable), *updated)]
        eager = self.tolerance >= COARSE
        return [(v, line or "an unknown line") for v, line in candidates if eager or line is not None]

    def _state(self, comm: Comm) -> tuple[list[Tensor], list[float]]:
        """Return the values of `held` in float64, large ones as sketches, and the relative difference allowed to each.

        Those that are not averaged are added over ranks, by weights that differ. The sum is one machine's value if
        every rank has that value, and another one if ranks have different values. A collective.
        """
        weight = 2 * (comm.rank + 1) / (comm.size * (comm.size + 1))
        variables = [tensor_variable(v) for v, _ in self.held]
        values = [_sketch(tf.cast(tf.identity(v), tf.float64)) for v in variables]
        own = [i for i, v in enumerate(variables) if id(v) not in self.terms.averaged]
        added = comm.sum([weight * values[i] for i in own], "hfdt.state") if own else []
        for i, value in zip(own, added, strict=True):
            values[i] = value
        return values, [0.0 if i in own else OVER_RANKS for i in range(len(values))]

    def _numbers(self, terms: StepTerms, share: Tensor, values: list[Tensor]) -> tuple[Any, Any]:
        """Return `Result.logs` and `Result.results`. A collective."""
        local = {name: float(value) for name, value in zip(self._log_names, values, strict=True)}
        mine, total = (float(n) for n in share)
        parts = [[value * mine / total if mine else 0.0, value if mine else 0.0] for value in local.values()]
        added = terms.comm.sum([tf.constant(parts, tf.float64)], "hfdt.logs")[0].numpy().tolist() if parts else []
        objects = metric_objects(self._trainable.model)
        metrics = terms.log_sources.metrics.items() if local else ()
        pairs = {name: (result_of(objects[i], name), local[name]) for name, i in metrics}
        return dict(zip(local, map(tuple, added), strict=True)), pairs


def _leaves(batch: Any) -> list[Any]:
    return [leaf for leaf in tf.nest.flatten(batch, expand_composites=True) if leaf is not None]


def is_half(model: Any) -> bool:
    """Return whether any layer computes in half precision."""
    layers = model._flatten_layers(include_self=True, recursive=True)
    return any(str(getattr(layer, "compute_dtype", "")) in ("float16", "bfloat16") for layer in layers)


def _sketch(gradient: Any) -> Any:
    """Return a linear map of a large dense gradient to numbers of about the same L2 norm, other gradients unchanged.

    As the map is linear, sketches of slices add up where the gradients do. The gradient is a matrix of _COLUMNS
    columns here, and the sketch _PROJECTIONS weighted sums of its rows; their weights, cos(a r^2), look random.
    """
    size = gradient.shape.num_elements() if isinstance(gradient, tf.Tensor) else None
    if size is None or size <= _COLUMNS**2:
        return gradient
    rows = -(-size // _COLUMNS)
    matrix = tf.reshape(tf.pad(tf.reshape(gradient, [-1]), [[0, rows * _COLUMNS - size]]), [rows, _COLUMNS])
    phases = [[0.6180339887 * (1 + i) % 1] for i in range(_PROJECTIONS)]
    row = tf.range(rows, dtype=tf.float32)
    weights = math.sqrt(2 / _PROJECTIONS) * tf.cos(tf.constant(phases) * row * row)
    return tf.cast(weights, gradient.dtype) @ matrix


@contextlib.contextmanager
def _unoptimized() -> Iterator[None]:
    """Run a graph without optimising it, which does not pay for two runs."""
    here = context.context()
    before, config = here.function_call_options, here.config
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    here.function_call_options = context.FunctionCallOptions(before.executor_type, config)
    try:
        yield
    finally:
        here.function_call_options = before
