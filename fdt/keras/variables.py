"""Keras's objects as TensorFlow has them: the tf.Variable inside a variable, the traced step of a model.

Also the optimizer inside another, the variables of its slots, and offsets of seeds.
"""

import contextlib
import inspect
import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import MethodType
from typing import Any

import tensorflow as tf

from fdt.compat.tensorflow import BaseResourceVariable, ResourceVariable, ag_ctx, api
from fdt.keras import unique
from fdt.typing import Layer, Model, Optimizer, Variable

WRITERS = (  # the methods of tf.Variable that assign
    "assign",
    "assign_add",
    "assign_sub",
    "batch_scatter_update",
    *(f"scatter_{what}" for what in ("add", "sub", "update", "max", "min", "mul", "div")),
    *(f"scatter_nd_{what}" for what in ("add", "sub", "update", "max", "min")),
)

_SETTINGS = ("floatx", "epsilon", "image_data_format")

# TensorFlow redefines some of these methods in the subclass.
ASSIGNING = [(owner, n) for owner in (BaseResourceVariable, ResourceVariable) for n in WRITERS if n in vars(owner)]


class KerasBase:
    """What both flavors (fdt/keras/__init__.py) have in common."""

    keras: Any  # the module
    kinds_of_optimizers: tuple[type, ...]

    def __init__(self) -> None:
        self._traced = Traced()

    def optimizers(self, model: Model) -> list[Optimizer]:
        kept = [v for _, v in sorted(vars(model).items()) if isinstance(v, self.kinds_of_optimizers)]
        first = [model.optimizer] if getattr(model, "optimizer", None) is not None else []
        return unique(first + kept)

    def settings(self) -> dict[str, Any]:
        return {name: getattr(self.keras.backend, name)() for name in _SETTINGS}

    def apply_settings(self, settings: dict[str, Any]) -> None:
        for name in _SETTINGS:
            getattr(self.keras.backend, f"set_{name}")(settings[name])


def tensor_variable(variable: Any) -> tf.Variable:
    """Return the tf.Variable inside a Keras 3 Variable or a tf_keras AutoCastVariable; a tf.Variable itself."""
    for attribute in ("_value", "_variable"):
        inner = getattr(variable, attribute, None)
        if isinstance(inner, tf.Variable):
            return inner
    return variable


def assign(variables: Iterable[Any], values: Iterable[Any]) -> None:
    """Assign each value to its variable."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


@contextlib.contextmanager
def assignments(before: dict[Any, Any] | None = None) -> Iterator[Counter[Any]]:
    """Yield the number of assignments within the context, traced or executed, by the `ref()` of the tf.Variable.

    If `before` is given, it receives the values from before them.
    """
    assigned: Counter[Any] = Counter()
    within: list[Any] = []  # a method of the subclass may call that of the base

    def noting(original: Any) -> Any:
        def assign(self: Any, *args: Any, **kwargs: Any) -> Any:
            assigned[self.ref()] += not within
            if before is not None and not within and self.ref() not in before:
                before[self.ref()] = self.read_value()
            within.append(self)
            try:
                return original(self, *args, **kwargs)
            finally:
                within.pop()

        return assign

    methods = [(owner, name, vars(owner)[name]) for owner, name in ASSIGNING]
    for owner, name, original in methods:
        setattr(owner, name, noting(original))
    try:
        yield assigned
    finally:
        for owner, name, original in methods:
            setattr(owner, name, original)


def batch_norms(model: Any) -> list[Layer]:
    """Return the model's BatchNorm layers, those of nested models included."""
    names = {"BatchNormalization", "BatchNormalizationBase"}
    layers = model._flatten_layers(include_self=False, recursive=True)
    return [la for la in layers if hasattr(la, "_moments") and names & {c.__name__ for c in type(la).__mro__}]


def moving_averages(model: Any) -> dict[int, float]:
    """Return the decay of each moving average of a BatchNorm layer, by the id of its tf.Variable."""
    found = {}
    for layer in filter(lambda each: each.built, batch_norms(model)):
        for variable in (layer.moving_mean, layer.moving_variance):
            found[id(tensor_variable(variable))] = float(layer.momentum)
    return found


SEED_STRIDE = 1_000_003  # distance between the seeds of ranks, workers or blocks


def shifted_seed(seed: Any, number: int) -> Any:
    """Return a seed generator's state (a tensor or variable), shifted for rank `number`; 0 leaves it unchanged."""
    shift = tf.one_hot(0, tf.size(seed), on_value=number * SEED_STRIDE, off_value=0, dtype=tf.int64)
    return seed + tf.cast(tf.reshape(shift, tf.shape(seed)), seed.dtype)


def inner_optimizer(optimizer: Any) -> Any:
    """Return the optimizer inside a LossScaleOptimizer; any other optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def is_loss_scaled(optimizer: Any) -> bool:
    """Return whether the optimizer scales the loss, and so handles overflow by itself."""
    return any(kind.__name__.startswith(("LossScaleOptimizer", "BaseLossScale")) for kind in type(optimizer).__mro__)


def call_converted(flavor: str, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Return `function(*args, **kwargs)`. Only the function of the script is converted, not the code around it."""
    if flavor != "tf_keras" or tf.executing_eagerly():
        return function(*args, **kwargs)
    with ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED):
        return api.tf_convert(function, ag_ctx.control_status_ctx())(*args, **kwargs)


def undecorate_steps(model: Any) -> None:
    """Replace the steps of `model` that are tf.functions by their Python functions, as AutoGraph converts them.

    Gradients are read where the step is traced, and no other graph can have the tensors of a tf.function's own graph.
    """
    for name in ("train_step", "test_step"):
        decorated = inspect.getattr_static(model, name)
        python = getattr(decorated, "python_function", None)
        if python is not None:
            step = python if name in vars(model) else MethodType(python, model)
            object.__setattr__(model, name, as_python(decorated, step))


def as_python(decorated: Any, python: Any) -> Any:
    """Return `python`, the function within a tf.function, so that AutoGraph converts it where it does there."""
    if not getattr(decorated, "_autograph", True):
        return python

    @tf.autograph.experimental.do_not_convert
    def call(*args: Any, **kwargs: Any) -> Any:
        return call_converted("tf_keras", python, *args, **kwargs)

    return call


def trace_step(step: Callable[[Any], Any], spec: Any) -> None:
    """Trace `step(data)`; `spec` is (x, y, sample_weight) of TensorSpecs, with None where there is no tensor."""
    flat = [s for s in tf.nest.flatten(spec) if s is not None]

    def traced(*leaves: Any) -> Any:
        remaining = iter(leaves)
        data = tf.nest.map_structure(lambda s: None if s is None else next(remaining), spec)
        step(data)

    tf.function(traced, autograph=False).get_concrete_function(*flat)


def trace_unbuilt(model: Any, spec: Any, parts: Sequence[Any]) -> None:
    """Build compiled losses or metrics that a custom training step leaves unbuilt, as validation would."""
    if any(part is not None and not part.built for part in parts):
        with contextlib.suppress(Exception):  # a test_step may fail in a model that is never evaluated
            trace_step(model.test_step, spec)


class Traced:
    """The models that were traced since they were last compiled."""

    def __init__(self) -> None:
        self._compiled: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def add(self, model: Any) -> None:
        self._compiled[model] = getattr(model, "_compile_config", None)

    def holds(self, model: Any) -> bool:
        return model in self._compiled and self._compiled[model] is getattr(model, "_compile_config", None)


def variables_of_slots(optimizer: Optimizer, trainable: Sequence[Variable]) -> dict[int, Variable]:
    """Return the trainable variable to which each slot belongs, keyed by the slot's id.

    Keras's optimizers keep their slots in lists, with one entry per variable for which the optimizer was built. Legacy
    optimizers keep them by name.
    """
    found: dict[int, Variable] = {}
    for holder in {id(each): each for each in (optimizer, inner_optimizer(optimizer))}.values():
        built_for = list(getattr(holder, "_trainable_variables", None) or trainable)
        for name, slots in vars(holder).items():
            if isinstance(slots, list) and len(slots) == len(built_for) and name not in _NO_SLOTS:
                pairs = zip(slots, built_for, strict=True)
                found.update({id(s): v for s, v in pairs if hasattr(s, "assign")})
        for name, v in itertools.product(getattr(holder, "get_slot_names", list)(), built_for):
            with contextlib.suppress(KeyError):  # of a weight that the optimizer has not updated
                found[id(holder.get_slot(tensor_variable(v), name))] = v
    return found


_NO_SLOTS = ("_variables", "_trainable_variables")  # lists of an optimizer that may be as long


def read_behind(graph: Any, variables: Iterable[Variable], count: int) -> list[Variable]:
    """Return those of `variables` that operations of a FuncGraph behind its first `count` have as an input."""
    inner = {id(outer): id(tensor) for outer, tensor in graph.captures}
    read = {id(tensor) for op in graph.get_operations()[count:] for tensor in op.inputs}
    return [v for v in variables if inner.get(id(tensor_variable(v).handle)) in read]


def build_optimizer(optimizer: Optimizer, variables: Sequence[Variable]) -> None:
    """Create the optimizer's variables.

    A tf.function creates variables in its first trace only, and that trace may skip this worker's step.
    """
    eager = tf.executing_eagerly()
    with tf.init_scope():
        if isinstance(optimizer, tf.compat.v1.train.Optimizer):
            optimizer._create_slots(variables)
        elif not getattr(optimizer, "built", True):
            build_as_a_step(optimizer, optimizer.build, variables, eager=eager)
        elif hasattr(optimizer, "build") and not hasattr(optimizer, "built"):  # tf_keras's, which may be built
            optimizer.build(variables)


def build_as_a_step(optimizer: Optimizer, build: Callable[[Any], None], variables: Any, *, eager: bool) -> None:
    """Build an optimizer of Keras 3 as its first step does, which is `eager` or compiled.

    Its variables are named within the optimizer's name. What `build` assigns, a compiled step does not: Keras discards
    the trace that creates variables, so slots keep their initial values.
    """
    import keras  # tf_keras alone may be installed

    from fdt.compat.keras3 import BaseOptimizer, LossScaleOptimizer

    named = type(optimizer).apply in (BaseOptimizer.apply, LossScaleOptimizer.apply)  # not MultiOptimizer
    scope = keras.name_scope(optimizer.name, caller=optimizer) if named else contextlib.nullcontext()
    before: dict[Any, Any] = {}
    with scope, assignments(before):
        build(variables)
    for variable, value in () if eager else before.items():
        variable.deref().assign(value)
