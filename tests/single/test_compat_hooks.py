"""What this project relies on in TensorFlow beside its public interface: that it calls what is patched.

A red case under a new release names the hook that broke. The functions in CALLED have the parameters of the project's
own replacements, and return whether the arguments are those that the replacements expect.
"""

import numpy as np
import pytest
import tensorflow as tf

from fdt.compat import tensorflow as private
from tests.single.hook_calls import assert_called

v1 = tf.compat.v1
EagerTensor = tf.__internal__.EagerTensor
X, V = tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.Variable(1.0)
ROW = tf.IndexedSlices(tf.constant([1.0]), tf.constant([0]))
ASSIGNS = {
    "assign": [2.0],
    "assign_add": [2.0],
    "assign_sub": [2.0],
    "scatter_add": ROW,
    "scatter_sub": ROW,
    "scatter_update": ROW,
    "batch_scatter_update": ROW,
    "scatter_nd_update": [[0]],
}
PATHS = ("path", "path_to_string")
PLUS = tf.function(lambda x: x + V, autograph=False)


def element():
    next(iter(tf.data.Dataset.from_tensors(X)))


def made_in_a_trace():
    made = []

    @tf.function
    def function():
        if not made:
            made.append(tf.Variable(1.0))
        return made[0] + 1.0

    function()


def in_python(function):
    return lambda: tf.function(lambda x: function(lambda y: -y, [x], tf.float32))(X)


def taped(function):
    def act():
        with tf.GradientTape() as tape:
            tape.watch(X)
            y = function(X)
        tape.gradient(y, X)

    return act


@tf.custom_gradient
def doubled(x):
    return 2.0 * x, lambda d: 2.0 * d


def by_fallback(act):
    """Return `act` with TensorFlow's fast path refused for it, as placed tensors have it refused."""

    def run():
        def refuse(*_):
            raise private.core._FallbackException

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(private.pywrap_tfe, "TFE_Py_FastPathExecute", refuse)
            act()

    return run


def forward_mode():
    with tf.autodiff.ForwardAccumulator(X, X):
        pass


def generated_code():
    def sign(x):
        return 1 if x > 0 else -1

    tf.function(sign)(tf.constant(1.0))


def trained(options=None):
    """Run a training step and a hook's timer in a graph of sessions."""

    def act():
        with tf.Graph().as_default() as graph, v1.Session(config=options) as session:
            v = v1.get_variable("v", initializer=v1.random_normal([2]), use_resource=True)
            x = v1.placeholder(tf.float32, [2])
            update = v1.train.GradientDescentOptimizer(0.1).minimize(tf.square(v * x))
            session.run(v.initializer)
            session.run(update, {x: [1.0, 2.0]})
            graph.as_graph_def()

    return act


def timed():
    with tf.Graph().as_default():
        x = tf.constant(1.0)
        with v1.train.SingularMonitoredSession([v1.train.LoggingTensorHook([x], every_n_secs=1)]) as session:
            session.run(x)


# (owner, attribute, what calls it, a function of its arguments)
CALLED = [
    # replica/eager.py, replica/rank.py
    (private.pywrap_tfe, "TFE_Py_FastPathExecute", lambda: -X, lambda ctx, op, name, x: op == "Neg" and x is X),
    (
        private.execute,
        "execute",
        by_fallback(lambda: tf.raw_ops.Neg(x=X)),
        lambda op, count, inputs, attrs, ctx, name=None: (op, count, inputs[0] is X) == (b"Neg", 1, True),
    ),
    (
        private.pywrap_tfe,
        "TFE_Py_TensorShapeSlice",
        taped(lambda x: tf.concat([x, x], 0)),
        lambda tensors, dimension: len(tensors) == 2 and dimension == 0,
    ),
    (private.script_ops.FuncRegistry, "__call__", in_python(tf.numpy_function), lambda registry, *args: True),
    (private.script_ops.EagerFunc, "_call", in_python(tf.py_function), lambda function, *args: True),
    # replica/entry.py, replica/functions.py, nfdt/replica/rank.py
    (private.iterator_ops.OwnedIterator, "_next_internal", element, lambda iterator: True),
    (
        private.concrete_function.ConcreteFunction,
        "_call_flat",
        lambda: PLUS(X),
        lambda function, tensors, captured: tensors[0] is X and captured[0] is V.handle,
    ),
    (
        private.atomic_function.AtomicFunction,
        "call_flat",
        lambda: PLUS(X),
        lambda function, x, captured: x is X and captured is V.handle,
    ),
    (private.polymorphic_function.Function, "__call__", lambda: PLUS(X), lambda function, x: function is PLUS),
    (private.function_context, "make_function_context", lambda: PLUS(X), lambda scope_type=None: True),
    # replica/reads.py, nfdt/replica/agreed_values.py
    (EagerTensor, "_numpy_internal", X.numpy, lambda tensor: tensor is X),
    (EagerTensor, "_shape_tuple", lambda: len(X), lambda tensor: tensor is X),
    (EagerTensor.__mro__[1], "__dlpack__", lambda: np.from_dlpack(X), lambda tensor, **_: tensor is X),
    (private.pywrap_tfe, "TFE_ToDlpackCapsule", lambda: np.from_dlpack(X), lambda tensor: tensor is X),
    (EagerTensor.__mro__[1], "_copy_nograd", X.cpu, lambda tensor, *args, **kwargs: tensor is X),
    (private.ops._EagerTensorBase, "__bool__", lambda: bool(X[0, 0] > 0), lambda tensor: tensor.dtype == tf.bool),
    # replica/tape.py
    (
        private.record,
        "record_operation",
        taped(doubled),
        lambda op_type, outputs, inputs, backward, forward=None: inputs[0] is X and callable(backward),
    ),
    (
        private.execute,
        "record_gradient",
        by_fallback(taped(tf.unstack)),
        lambda op, inputs, attrs, outputs: op == "Unpack" and inputs[0] is X and len(outputs) == 2,
    ),
    (tf.autodiff.ForwardAccumulator, "_push_accumulator", forward_mode, lambda accumulator: True),
    (tf.autodiff.ForwardAccumulator, "_pop_accumulator", forward_mode, lambda accumulator: True),
    # replica/variables.py, client_shim/verify, hfdt/exactness/assigned_state.py, nfdt/worker/local_steps.py
    (private.ResourceVariable, "__init__", lambda: tf.Variable(X), lambda variable, *args, **kwargs: variable is not V),
    (private.BaseResourceVariable, "__init__", lambda: tf.Variable(X), lambda variable, *args, **kwargs: True),
    (
        private.polymorphic_function.UnliftedInitializerVariable,
        "__init__",
        made_in_a_trace,
        lambda variable, *args, **kwargs: variable is not V,
    ),
    (
        private.polymorphic_function.Function,
        "_initialize_uninitialized_variables",
        made_in_a_trace,
        lambda function, initializers: len(initializers) == 1,
    ),
    # hfdt/exactness/adjoints.py
    (
        type(private.ops.gradient_registry),
        "lookup",
        taped(tf.reduce_sum),
        lambda registry, name: registry is private.ops.gradient_registry and name == "Sum",
    ),
    # client_shim/replica/entropy.py
    (
        private.gen_stateful_random_ops,
        "non_deterministic_ints",
        tf.random.Generator.from_non_deterministic_state,
        lambda shape, dtype=None, name=None: True,
    ),
    # client_shim/replica/sessions, nfdt/replica
    (
        private.BaseSession,
        "__init__",
        trained(v1.ConfigProto()),
        lambda session, target="", graph=None, config=None: isinstance(config, v1.ConfigProto),
    ),
    (
        private.BaseSession,
        "run",
        trained(),
        lambda session, fetches, feeds=None, options=None, run_metadata=None: feeds,
    ),
    (private.BaseSession, "close", trained(), lambda session: True),
    (private.Optimizer, "__init__", trained(), lambda optimizer, *args, **kwargs: True),
    (
        private.Optimizer,
        "apply_gradients",
        trained(),
        lambda optimizer, pairs, global_step=None, name=None: len(list(pairs)) == 1,
    ),
    (private.random_seed, "get_seed", trained(), lambda op_seed: op_seed is None),
    (private.gradients_util, "_GradientsHelper", trained(), lambda ys, xs, *args, **kwargs: len(xs) == 1),
    (private.ops.Graph, "_as_graph_def", trained(), lambda graph, *args, **kwargs: len(graph._as_graph_def()) == 2),
    (private.FetchMapper, "for_fetch", trained(), lambda fetch: True),
    (private.SecondOrStepTimer, "should_trigger_for_step", timed, lambda timer, step: timer._every_secs == 1),
    # fdt/environment.py: AutoGraph's files
    (private.loader.tempfile, "NamedTemporaryFile", generated_code, lambda **words: words["mode"] == "w"),
]


@pytest.mark.parametrize(("owner", "name", "act", "accepts"), CALLED, ids=[f"{c[0].__name__}.{c[1]}" for c in CALLED])
def test_called(owner, name, act, accepts):
    assert_called(owner, name, act, accepts)


@pytest.mark.parametrize("name", ASSIGNS)
def test_an_assignment_is_a_method_of_the_two_classes(name):
    owners = [owner for owner in (private.ResourceVariable, private.BaseResourceVariable) if name in vars(owner)]
    more = ([1.0],) if name == "scatter_nd_update" else ()
    assert owners
    assert_called(
        owners[0],
        name,
        lambda: getattr(tf.Variable([1.0]), name)(ASSIGNS[name], *more),
        lambda variable, *_, **__: True,
    )


def test_dataset_operations_take_deterministic():
    assert_called(
        private.gen_dataset_ops,
        "parallel_map_dataset_v2",
        lambda: tf.data.Dataset.range(2).map(lambda x: x, num_parallel_calls=2, deterministic=False),
        lambda *args, deterministic, **kwargs: deterministic == "false",
    )
