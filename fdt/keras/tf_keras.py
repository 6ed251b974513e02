"""The flavor of tf_keras: Keras 2, by TF_USE_LEGACY_KERAS or `import tf_keras`."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from fdt.compat.tf_keras import (
    ContextValueCache,
    autocast_variable,
    functional,
    node,
    optimizer_v2,
    tf_op_layer,
    tf_utils,
)
from fdt.keras import Apply, all_variables, attribute, natives, pickling, refuse_strategy, unique
from fdt.keras.variables import KerasBase, call_converted, trace_step, trace_unbuilt
from fdt.typing import Model, Optimizer, Variable

_COMPILED = ("train_function", "test_function", "predict_function", "train_tf_function", "_training_state")
_DROPPED = ("history", "stop_training", "_eval_data_handler", "_obj_reference_counts_dict")
_LAST = ("_saved_model_inputs_spec", "_saved_model_arg_spec", "_call_result")  # of the last call, including its trace
_COUNTERS = ("_train_counter", "_test_counter", "_predict_counter")
_OF_OP_LAYERS = ("call", "function", "symbol", "_call_spec")
_WRAPPED = ("update_state", "result")  # a metric's methods, wrapped by its __new__


class TfKeras(KerasBase):
    """`tf_keras`."""

    name = "tf_keras"
    keras = tf_keras
    kinds_of_optimizers = (tf_keras.optimizers.Optimizer, optimizer_v2.OptimizerV2)

    def trainable(self, model: Model) -> list[Variable]:
        return unique(_variables(model.trainable_variables))

    def non_trainable(self, model: Model) -> list[Variable]:
        own = [*_variables(model.non_trainable_variables), *self.seeds(model)]  # weights of layers omit seeds
        return unique(own, without=[*self.trainable(model), *self.metrics(model)])

    def seeds(self, model: Model) -> list[Variable]:
        held = [value for layer in model._flatten_layers() for _, value in sorted(vars(layer).items())]
        generators = [getattr(value, "_generator", None) or value for value in held]
        return unique([g.state for g in generators if isinstance(g, tf.random.Generator)])

    def optimizer(self, model: Model) -> list[Variable]:
        found = [v for optimizer in self.optimizers(model) for v in _optimizer_variables(optimizer)]
        return unique(found, without=[*self.trainable(model), *self.non_trainable(model)])

    def metrics(self, model: Model) -> list[Variable]:
        return unique([v for metric in model.metrics for v in metric.variables])

    def refuse(self, model: Model) -> None:
        refuse_strategy(model.distribute_strategy)

    def compiled(self, model: Model) -> bool:
        return bool(model._is_compiled)

    def steps_per_execution(self, model: Model) -> int:
        return int(model._steps_per_execution)

    def whole_executions(self, model: Model, steps: int | None) -> int | None:
        return steps

    def restored(self, model: Model, steps: int, given: int) -> tuple[int, int]:
        epoch, step = model._maybe_load_initial_counters_from_ckpt(steps or sys.maxsize, given)
        return int(epoch), int(step)

    def set_steps_per_execution(self, model: Model, count: int) -> None:
        if count != self.steps_per_execution(model):
            model._configure_steps_per_execution(count)
            model.train_function = model.test_function = None  # they contain the old count

    def learned_steps(self, model: Model, before: int) -> int | None:
        return before + int(model._train_counter)

    def result(self, model: Model, logs: dict[str, float]) -> dict[str, float]:
        found = model._validate_and_get_metrics_result(logs)
        result: dict[str, float] = tf_utils.sync_to_numpy_or_python_type(found)
        return result

    def built(self, model: Model) -> bool:
        return self._traced.holds(model)

    def build(self, model: Model, spec: Any) -> None:
        trace_step(lambda data: call_converted(self.name, model.train_step, data), spec)
        trace_unbuilt(model, spec, (model.compiled_metrics, model.compiled_loss))
        self._traced.add(model)

    def dumps(self, model: Model) -> tuple[bytes, list[Variable]]:
        pickled_variables = all_variables(self, model)
        for part in (model.compiled_loss, model.compiled_metrics):
            pickled_variables += [v for metric in (part.metrics if part is not None else ()) for v in metric.variables]
        inner = [v._variable for v in pickled_variables if isinstance(v, autocast_variable.AutoCastVariable)]
        ids = frozenset(map(id, [*pickled_variables, *inner]))
        return pickling.dumps(model, (_reduce_object,), ids, [model._steps_per_execution])

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "dtype_policy": tf_keras.mixed_precision.global_policy().name}

    def apply_settings(self, settings: dict[str, Any]) -> None:
        super().apply_settings(settings)
        tf_keras.mixed_precision.set_global_policy(settings["dtype_policy"])

    def replace_apply(self, optimizer: Optimizer, apply: Apply) -> contextlib.AbstractContextManager[None]:
        original = optimizer.apply_gradients

        def replaced(grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            def apply_now(gradients: list[Any], variables: list[Variable]) -> Any:
                return original(list(zip(gradients, variables, strict=True)), *args, **kwargs)

            pairs = list(grads_and_vars)
            return apply(apply_now, [g for g, _ in pairs], [v for _, v in pairs])

        return attribute(optimizer, "apply_gradients", replaced)


def _variables(weights: Sequence[Any]) -> list[Variable]:
    """Return those of `weights` that are variables; a vocabulary's handle is among the weights, too."""
    return [v for v in weights if isinstance(v, tf.Variable)]


def _optimizer_variables(obj: Any, depth: int = 0) -> Iterator[Variable]:
    """Yield every variable of an optimizer, its inner optimizer and its loss scale, sorted by attribute names.

    `optimizer.variables` omits the learning rate, which callbacks set.
    """
    if isinstance(obj, tf.Variable):
        yield obj
    elif isinstance(obj, dict):
        for _, value in sorted(obj.items(), key=lambda item: str(item[0])):
            yield from _optimizer_variables(value, depth + 1)
    elif isinstance(obj, (list, tuple)):
        for value in obj:
            yield from _optimizer_variables(value, depth + 1)
    elif depth < 4 and isinstance(obj, tf.__internal__.tracking.Trackable) and hasattr(obj, "__dict__"):
        for name, value in sorted(vars(obj).items()):
            if not name.startswith("_self_"):
                yield from _optimizer_variables(value, depth + 1)


def _reduce_object(obj: Any, pickler: pickling.ModelPickler) -> Any:
    if isinstance(obj, autocast_variable.AutoCastVariable):
        return autocast_variable.create_autocast_variable, (obj._variable,)
    if isinstance(obj, ContextValueCache):
        return type(obj), (obj.default_factory,)
    if isinstance(obj, tf_op_layer.TFOpLambda):
        state = {key: value for key, value in vars(obj).items() if key not in (*_OF_OP_LAYERS, *_dropped(obj))}
        made_of = (type(obj), obj.function, obj.name)
        return pickling.Later(_op_layer, made_of, dict(sorted(state.items())), pickling.set_state)
    if isinstance(obj, node.Node):
        return pickling.by_state(obj, dict(vars(obj)), _set_node)
    if isinstance(obj, (optimizer_v2.OptimizerV2, tf_keras.optimizers.Optimizer)):  # the model's are in the job's state
        for variable in _optimizer_variables(obj):
            pickler.keep_value(variable)
    if not isinstance(obj, (tf.Module, optimizer_v2.OptimizerV2, tf_keras.optimizers.Optimizer, tf_keras.losses.Loss)):
        return NotImplemented
    state = {key: value for key, value in vars(obj).items() if key not in _dropped(obj)}
    state.update((key, None) for key in (*_COMPILED, *_LAST) if key in state)
    state.update((key, _Counter()) for key in _COUNTERS if key in state)
    finish = _set_functional if isinstance(obj, functional.Functional) else pickling.set_state
    return pickling.by_state(obj, state, finish)


def _dropped(obj: Any) -> tuple[str, ...]:
    return (*_DROPPED, *natives.CHECKPOINTING, *(_WRAPPED if isinstance(obj, tf_keras.metrics.Metric) else ()))


def _op_layer(cls: type, function: Any, name: str) -> Any:
    """Return the layer of an op such as `tf.abs(x)` in a functional model; its constructor wraps the function."""
    return cls(function, name=name)


class _Counter:
    """Replaces a counter of steps, which restarts at 0."""

    def __reduce__(self) -> Any:
        return _counter, ()


def _counter() -> Any:
    with tf.init_scope():
        return tf.Variable(np.int64(0), aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)


def _set_node(target: Any, state: dict[str, Any]) -> None:
    target.__dict__.update(state)

    def renew_ids() -> None:
        target.flat_input_ids = [str(id(t)) for t in target._keras_inputs]
        places = [index for _, index in state["_keras_inputs_ids_and_indices"]]
        target._keras_inputs_ids_and_indices = list(zip(target.flat_input_ids, places, strict=True))
        target.flat_output_ids = [str(id(t)) for t in tf.nest.flatten(target.outputs)]

    pickling.afterwards(renew_ids)


def _set_functional(model: Any, state: dict[str, Any]) -> None:
    model.__dict__.update(state)
    if "_tensor_usage_count" in state:
        pickling.afterwards(model._compute_tensor_usage_count)
