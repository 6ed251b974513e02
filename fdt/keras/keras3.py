"""The flavor of Keras 3 on TensorFlow."""

import contextlib
from typing import Any

import keras
import tensorflow as tf

from fdt.compat.keras3 import DynamicBackend, KerasSaveable, Operation, pythonify_logs, tracking
from fdt.keras import (
    Apply,
    all_variables,
    are_layers_built,
    attribute,
    is_of_keras,
    natives,
    pickling,
    refuse_strategy,
    unique,
)
from fdt.keras.variables import KerasBase, build_as_a_step, trace_step, trace_unbuilt
from fdt.typing import Model, Optimizer, Variable

_COMPILED = ("train_function", "test_function", "predict_function", "_initial_epoch")  # set by fit and evaluate
_BOUND = ("build", "quantize")  # created by Layer.__new__
_OF_FIT = ("history", "_eval_epoch_iterator", "stop_training", "stop_evaluating", "stop_predicting")
_OF_LAYERS = (*_BOUND, *_OF_FIT)
_CACHES = ("_exclude_from_weight_decay_cache",)
_UNSET = ("is_gptq_calibrated", "is_awq_calibrated")  # load_weights adds them as False, which they mean before
_TRACKED = (tracking.TrackedList, tracking.TrackedDict, tracking.TrackedSet)


class Keras3(KerasBase):
    """`keras` 3 with the TensorFlow backend."""

    name = "keras"
    keras = keras
    kinds_of_optimizers = (keras.optimizers.Optimizer,)

    def trainable(self, model: Model) -> list[Variable]:
        return unique(model.trainable_variables)

    def non_trainable(self, model: Model) -> list[Variable]:
        return unique(model.non_trainable_variables, without=[*self.trainable(model), *self.metrics(model)])

    def seeds(self, model: Model) -> list[Variable]:
        states = {id(g.state) for layer in model._flatten_layers() for g in layer._seed_generators}
        return [v for v in self.non_trainable(model) if id(v) in states]

    def optimizer(self, model: Model) -> list[Variable]:
        found: list[Optimizer] = []
        self._add_held(self.optimizers(model), found)
        return unique([v for optimizer in found for v in optimizer.variables])

    def _add_held(self, value: Any, found: list[Optimizer]) -> None:
        """Add the optimizers in `value` and those that they hold, whose variables are not among `variables`."""
        if isinstance(value, self.kinds_of_optimizers):
            if not any(value is each for each in found):
                found.append(value)
                self._add_held(vars(value), found)
        elif isinstance(value, dict):
            for _, each in sorted(value.items(), key=lambda item: str(item[0])):
                self._add_held(each, found)
        elif isinstance(value, (list, tuple)):
            for each in value:
                self._add_held(each, found)

    def metrics(self, model: Model) -> list[Variable]:
        return unique(model.metrics_variables)

    def refuse(self, model: Model) -> None:
        refuse_strategy(model._distribute_strategy)

    def compiled(self, model: Model) -> bool:
        return bool(model.compiled)

    def steps_per_execution(self, model: Model) -> int:
        return int(model.steps_per_execution)

    def whole_executions(self, model: Model, steps: int | None) -> int | None:
        count, most = self.steps_per_execution(model), getattr(keras.config, "max_steps_per_epoch", lambda: None)()
        if most and (steps is None or steps >= most):
            steps = most
        if steps is None or steps < 0:
            return steps
        return -(-steps // count) * count  # the last execution has all its steps

    def restored(self, model: Model, steps: int, given: int) -> tuple[int, int]:
        return int(getattr(model, "_initial_epoch", None) or given), 0

    def set_steps_per_execution(self, model: Model, count: int) -> None:
        if count != self.steps_per_execution(model):
            model.steps_per_execution = count
            model.train_function = model.test_function = None  # they contain the old count

    def learned_steps(self, model: Model, before: int) -> int | None:
        return None  # each epoch ends with the data

    def result(self, model: Model, logs: dict[str, float]) -> dict[str, float]:
        result: dict[str, float] = pythonify_logs(model._get_metrics_result_or_logs(logs))
        return result

    def built(self, model: Model) -> bool:
        if self._traced.holds(model):
            return True
        parts = (*model._flatten_layers(), *self.optimizers(model), model._compile_metrics, model._compile_loss)
        return all(part is None or part.built for part in parts)

    def build(self, model: Model, spec: Any) -> None:
        dense = all(isinstance(each, tf.TensorSpec) for each in tf.nest.flatten(spec) if each is not None)
        quick = dense and are_layers_built(model)  # layers may read shapes of a step
        if quick and is_of_keras(self, model, "train_step"):  # Keras takes sparse tensors for dense ones here
            rows = _fixed_batch(model, spec) or 2
            with _built_as_a_step(model):
                model._symbolic_build(data_batch=tf.nest.map_structure(lambda each: _with_batch(each, rows), spec))
        else:
            trace_step(model.train_step, spec)
            trace_unbuilt(model, spec, (model._compile_metrics, model._compile_loss))
        self._traced.add(model)

    def dumps(self, model: Model) -> tuple[bytes, list[Variable]]:
        pickled_variables = all_variables(self, model)
        for part in (model._compile_metrics, model._compile_loss, model._loss_tracker):
            pickled_variables += getattr(part, "variables", [])  # also those that an overridden `metrics` omits
        owners = {id(v._value): v for v in pickled_variables if isinstance(v, keras.Variable)}

        def reduce_value(obj: Any, _: pickling.ModelPickler) -> Any:
            return (getattr, (owners[id(obj)], "_value")) if id(obj) in owners else NotImplemented

        reduces = (reduce_value, _reduce_variable, _reduce_object)
        return pickling.dumps(model, reduces, frozenset(map(id, pickled_variables)))

    def settings(self) -> dict[str, Any]:
        policy = keras.saving.serialize_keras_object(keras.config.dtype_policy())
        return {**super().settings(), "dtype_policy": policy}

    def apply_settings(self, settings: dict[str, Any]) -> None:
        super().apply_settings(settings)
        keras.config.set_dtype_policy(keras.saving.deserialize_keras_object(settings["dtype_policy"]))

    def replace_apply(self, optimizer: Optimizer, apply: Apply) -> contextlib.AbstractContextManager[None]:
        original = optimizer.apply

        def replaced(grads: Any, trainable_variables: Any = None) -> Any:
            variables = optimizer._trainable_variables if trainable_variables is None else trainable_variables
            return apply(original, list(grads), list(variables))

        return attribute(optimizer, "apply", replaced)


def _built_as_a_step(model: Model) -> contextlib.AbstractContextManager[None]:
    """Let a symbolic build, which Keras's own `fit` does without, build the optimizer as the first step does."""
    optimizer, eager = model.optimizer, bool(model.run_eagerly) or tf.config.functions_run_eagerly()
    if optimizer is None:
        return contextlib.nullcontext()
    build = optimizer.build
    return attribute(optimizer, "build", lambda variables: build_as_a_step(optimizer, build, variables, eager=eager))


def _fixed_batch(model: Model, spec: Any) -> int | None:
    """Return the batch size that the model's inputs fix, as a stateful RNN asks for, or the data; None if none does."""
    given = [*(getattr(getattr(model, "_functional", model), "_inputs", None) or []), *tf.nest.flatten(spec)]
    shapes = [tf.TensorShape(each.shape) for each in given if each is not None]
    return next((shape[0] for shape in shapes if shape.rank and shape[0]), None)


def _with_batch(spec: Any, rows: int) -> Any:
    """Return the spec with a batch size, which Keras's symbolic build needs."""
    if spec is None:
        return None
    shape = spec.shape
    return spec if shape.rank is None or shape.rank == 0 else tf.TensorSpec([shape[0] or rows, *shape[1:]], spec.dtype)


def _reduce_variable(obj: Any, pickler: pickling.ModelPickler) -> Any:
    if not isinstance(obj, keras.Variable):
        return NotImplemented
    state = {key: value for key, value in vars(obj).items() if key not in ("_value", "_initializer")}
    arguments = {
        "shape": tuple(obj.shape),
        "dtype": obj.dtype,
        "trainable": obj.trainable,
        "autocast": obj._autocast,
        "aggregation": obj.aggregation,
        "synchronization": obj.synchronization,
        "name": obj.name,
    }
    made_of = (type(obj), arguments, obj.value._unique_id, pickler.value_of(obj, tuple(obj.shape), obj.dtype))
    return _variable, made_of, state, None, None, pickling.set_state


def _variable(cls: type, arguments: dict[str, Any], unique_id: str, value: Any) -> Any:
    variable = cls(lambda shape, dtype: tf.convert_to_tensor(value, dtype), **arguments)
    variable._value._unique_id = unique_id  # optimizers look up their slots by it
    return variable


def _reduce_object(obj: Any, pickler: pickling.ModelPickler) -> Any:
    if isinstance(obj, DynamicBackend):
        return DynamicBackend, (obj._backend,)
    if isinstance(obj, keras.random.SeedGenerator):
        pickler.keep_value(obj.state)
    if isinstance(obj, tracking.Tracker):
        config = {name: (pickler.shared(belongs), store) for name, (belongs, store) in obj.config.items()}
        return pickling.by_state(obj, {**vars(obj), "config": config}, _set_tracker)
    if isinstance(obj, _TRACKED):
        return pickling.new, (type(obj),), (_items(obj), dict(vars(obj))), None, None, _set_tracked
    if isinstance(obj, keras.optimizers.Optimizer):  # the model's own are in the job's state
        for variable in obj.variables:
            pickler.keep_value(variable)
    if isinstance(obj, (KerasSaveable, Operation)):
        dropped = (*natives.CHECKPOINTING, *_CACHES, *(_OF_LAYERS if isinstance(obj, keras.layers.Layer) else ()))
        dropped += tuple(key for key in _UNSET if vars(obj).get(key) is False)
        state = {key: value for key, value in vars(obj).items() if key not in dropped}
        state.update((key, None) for key in _COMPILED if key in state)
        return pickling.by_state(obj, state, pickling.set_state)
    return NotImplemented


def _items(tracked: Any) -> Any:
    return dict(tracked) if isinstance(tracked, dict) else list(tracked)


def _set_tracked(tracked: Any, state: tuple[Any, dict[str, Any]]) -> None:
    items, attributes = state
    tracked.__dict__.update(attributes)
    fill = list.extend if isinstance(tracked, list) else dict.update if isinstance(tracked, dict) else set.update
    fill(tracked, items)


def _set_tracker(tracker: Any, state: dict[str, Any]) -> None:
    tracker.__dict__.update(state)

    def renew_ids() -> None:
        tracker.stored_ids = {name: {id(value) for value in store} for name, (_, store) in tracker.config.items()}

    pickling.afterwards(renew_ids)
