"""What this project relies on in TensorFlow beside its public interface: private functions, attributes and tables."""

import gc
import importlib
import inspect
import pathlib
import random
import re
import sys

import numpy as np
import pytest
import tensorflow as tf

import fdt
from fdt.compat import FILE_CLASSES, FILE_FUNCTIONS
from fdt.compat import tensorflow as private
from fdt.patches import Patch, patched
from replica import reads, tensors

v1 = tf.compat.v1
X, V = tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.Variable(1.0)
PLUS = tf.function(lambda x: x + V, autograph=False)
PATHS = {"file_prefix", "save_path", "logdir", "export_dir", "path", "filename", "filenames"}
PATHS |= {"path_to_string", "src", "dst", "pattern"}


def gradient(function):
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = function(X)
    return tape.gradient(y, X)


# -- iterators (fdt/data/source.py) ------------------------------------------------------------------------------------
def test_an_iterators_resource_is_deleted_with_the_last_reference_to_its_tensor():
    iterator = iter(tf.data.Dataset.range(3))
    next(iterator)
    resource = iterator._iterator_resource
    del iterator
    gc.collect()
    assert resource.dtype == tf.resource and sys.getrefcount(resource) == 2, "this function's and the call's"


# -- the C++ tape (replica/tape.py) ------------------------------------------------------------------------------------
def test_the_tapes_zeros_are_the_vspaces(monkeypatch):
    made, own = [], private.backprop._default_vspace

    def zeros(shape, dtype):
        made.append(shape)
        return private.backprop._zeros(shape, dtype)

    private.pywrap_tfe.TFE_Py_RegisterVSpace(own._replace(zeros_fn=zeros))
    try:
        gradient(lambda x: tf.unstack(x)[0])
    finally:
        private.pywrap_tfe.TFE_Py_RegisterVSpace(own)
    assert len(made) == 1


def test_the_tapes_gradients_are_the_registered_functions():
    found = []

    def noting(op, attrs, count, inputs, outputs, gradients, skip, scope):
        found.append(op)
        return private.backprop._gradient_function(op, attrs, count, inputs, outputs, gradients, skip, scope)

    private.pywrap_tfe.TFE_Py_RegisterGradientFunction(noting)
    try:
        gradient(tf.negative)
    finally:
        private.pywrap_tfe.TFE_Py_RegisterGradientFunction(private.backprop._gradient_function)
    assert found == ["Neg"]


def test_no_tape_is_known():
    assert private.pywrap_tfe.TFE_Py_TapeSetIsEmpty() and not private.record.could_possibly_record()
    with tf.GradientTape():
        assert not private.pywrap_tfe.TFE_Py_TapeSetIsEmpty() and private.record.could_possibly_record()
        with private.record.stop_recording():
            assert not private.record.could_possibly_record()


# -- eager tensors (replica/tensors.py, replica/reads.py) --------------------------------------------------------------
def test_an_eager_tensor_has_attributes_and_shows_its_tensor_shape(monkeypatch):
    monkeypatch.setattr(private.ops._EagerTensorBase, "_contract", None, raising=False)
    tensor = tf.constant([1.0])
    assert tensor._contract is None
    tensor._contract, tensor._tensor_shape = 1, tf.TensorShape([9])
    assert (tensor._contract, tensor.shape, tensor._shape_tuple()) == (1, [9], (1,))


def test_an_eager_tensors_buffer_can_be_replaced():
    class Whole:
        whole = staticmethod(lambda tensor: tensor._replicated)

    tensors.install()
    with reads._buffers(Whole()):  # raises RuntimeError
        assert np.asarray(tf.constant([5.0])).tolist() == [5.0]


# -- functions and graphs ----------------------------------------------------------------------------------------------
def test_a_function_context_is_a_part_of_the_key_of_a_trace():
    traces, kinds = [], iter(("a", "b", "b"))

    @tf.function(autograph=False)
    def count(x):
        traces.append(1)
        return x

    def other(original, scope_type=None):
        made = original(scope_type)
        return private.function_context.function_cache.FunctionContext(made.context, (made.scope_type, next(kinds)))

    with patched([Patch(private.function_context, "make_function_context", other)]):
        [count(X) for _ in range(3)]
    assert len(traces) == 2


def test_a_loop_over_a_dataset_is_the_registrys(monkeypatch):
    found, loops = [], private.control_flow.for_loop_registry._registry

    def over_iterator(dataset, *rest):
        found.append(dataset)
        return private.control_flow._tf_iterator_for_stmt(iter(dataset), *rest)

    @tf.function
    def total(dataset):
        result = 0
        for x in dataset:
            result += tf.cast(x, tf.int32)
        return result

    monkeypatch.setitem(loops, private.dataset_ops.DatasetV2, over_iterator)
    assert int(total(tf.data.Dataset.range(4))) == 6 and len(found) == 1


def test_a_graph_becomes_a_function():
    traced = PLUS.get_concrete_function(X).graph
    graph = private.func_graph.FuncGraph("contract")
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [2, 2])
        made = graph._create_op_internal("Neg", [x], [tf.float32], attrs={}, op_def=None)
        graph.inputs, graph.outputs = [x], [made.outputs[0]]
    function = private.atomic_function.from_func_graph(f"contract_{private.ops.uid()}", graph, {})
    assert np.array_equal(function.call_flat(X)[0], -X) and isinstance(function.name, bytes)
    assert traced.get_operations() and function.function_type.flat_outputs[0].dtype == tf.float32
    graph._add_function_recursive(function)
    assert graph._get_function(function.name.decode()).graph is graph
    assert private.function_def_to_graph(function.definition).outputs[0].op.type in ("Neg", "Identity")


def test_handle_data_go_from_one_tensor_to_another():
    with tf.Graph().as_default():
        given = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[3])
        made = v1.placeholder(tf.resource, [])
        private.handle_data_util.copy_handle_data(given, made)
        data = private.handle_data_util.get_handle_data(made)
        assert [dim.size for dim in data.shape_and_type[0].shape.dim] == [3]
        private.handle_data_util.set_handle_data(v1.placeholder(tf.resource, []), data)


def test_operations_are_registered():
    assert [each.name for each in private.op_def_registry.get("AddV2").input_arg] == ["x", "y"]
    assert private.op_def_registry.get("NoSuchOperation") is None
    assert private.kernels.get_registered_kernels_for_op("Neg").kernel


def test_the_context_has_functions_seeds_and_options():
    context = private.context.context()
    definition = PLUS.get_concrete_function(X).graph.as_graph_def().library.function
    assert not definition and not context.has_function("no_such_function")
    before = private.context.global_seed()
    try:
        tf.random.set_seed(3)
        assert private.context.global_seed() == 3 and isinstance(context._rng, random.Random)
    finally:
        context._set_global_seed(before)
    options = context.function_call_options
    assert private.context.FunctionCallOptions(options.executor_type, context.config).config_proto_serialized


def test_a_cancelled_call_builds_the_function_and_runs_nothing():
    count, context = tf.Variable(0), private.context.context()
    traced = tf.function(lambda x: count.assign_add(x), autograph=False).get_concrete_function(
        tf.TensorSpec([], tf.int32)
    )
    definition = context.get_function_def(traced.name.decode())
    definition.signature.name = "contract_of_a_call"
    context.add_function_def(definition)
    cancelled = private.cancellation.CancellationManager()
    cancelled.start_cancel()
    attributes = [item for pair in context.function_call_options.as_attrs().items() for item in pair]
    given = [tf.constant(1), *traced.captured_inputs]
    with pytest.raises(tf.errors.CancelledError):
        private.execute.execute_with_cancellation("contract_of_a_call", 1, given, tuple(attributes), context, cancelled)
    assert int(count) == 0
    assert int(context.call_function(b"contract_of_a_call", given, 1)[0]) == int(count) == 1
    context.remove_function("contract_of_a_call")
    assert not context.has_function("contract_of_a_call")


def test_autograph_converts_where_it_is_enabled():
    with private.ag_ctx.ControlStatusCtx(status=private.ag_ctx.Status.ENABLED), tf.Graph().as_default():
        converted = private.api.tf_convert(lambda x: 1 if x else 2, private.ag_ctx.control_status_ctx())
        assert converted(tf.constant(True)).graph is v1.get_default_graph()


# -- datasets, tables, containers (fdt/data, fdt/keras) ----------------------------------------------------------------
def test_a_dataset_shows_its_source():
    dataset = tf.data.Dataset.from_tensor_slices([1, 2]).prefetch(1)
    assert type(dataset).__name__ == "_PrefetchDataset" and dataset._inputs() == [dataset._input_dataset]
    assert dataset._input_dataset._tensors[0].shape == [2]


def test_datasets_show_their_arguments():
    rows = tf.data.Dataset.range(9)
    assert type(rows.with_options(tf.data.Options())).__name__ == "_OptionsDataset"
    sized = {"_count": [rows.take(2), rows.skip(2), rows.repeat(2)], "_buffer_size": [rows.prefetch(2)]}
    kinds = ["_TakeDataset", "_SkipDataset", "_RepeatDataset", "_PrefetchDataset"]
    assert [type(dataset).__name__ for datasets in sized.values() for dataset in datasets] == kinds
    assert all(int(getattr(dataset, name)) == 2 for name, datasets in sized.items() for dataset in datasets)
    cached, shuffled = rows.cache(), rows.shuffle(2, seed=3, reshuffle_each_iteration=False)
    assert type(cached).__name__ == "CacheDataset" and cached._filename.numpy() == b""
    assert type(shuffled).__name__ == "_ShuffleDataset" and int(shuffled._buffer_size) == 2
    assert (int(shuffled._seed2), shuffled._reshuffle_each_iteration) == (3, False) and shuffled._seed.dtype == tf.int64
    for batched, kind in ((rows.batch(2, True), "Batch"), (rows.batch(2, True, num_parallel_calls=2), "ParallelBatch")):
        assert type(batched).__name__ == f"_{kind}Dataset" and int(batched._batch_size) == 2
        assert bool(batched._drop_remainder) is True
    assert int(batched._num_parallel_calls) == 2


def test_a_map_shows_its_function():
    def double(i):
        return i * factor

    rows, factor = tf.data.Dataset.range(9), tf.Variable(2, dtype=tf.int64)
    for mapped, kind in ((rows.map(double), "Map"), (rows.map(double, num_parallel_calls=2), "ParallelMap")):
        function = mapped._map_func.function
        assert type(mapped).__name__ == f"_{kind}Dataset" and mapped._map_func._func is double
        assert [t.shape for t in function.graph.inputs] == [[], []] and len(function.captured_inputs) == 1
        assert "ReadVariableOp" in {node.op for node in function.graph.as_graph_def().node}
    assert int(mapped._num_parallel_calls) == 2
    known = private.op_def_registry.get
    assert known("ReadVariableOp").is_stateful and not known("Mul").is_stateful


def test_containers_keep_what_they_wrap():
    module = tf.Module()
    module.listed, module.named = [1], {"a": 1}
    assert isinstance(module.listed, private.data_structures.ListWrapper) and module.listed._storage == [1]
    assert hasattr(module.listed, "_last_wrapped_list_snapshot")
    assert isinstance(module.named, private.data_structures._DictWrapper) and module.named.__wrapped__ == {"a": 1}
    module.named._update_snapshot()
    assert module.named._self_non_string_key is False


def test_public_functions_have_names():
    name = private.tf_export.get_canonical_name_for_symbol(tf.nn.relu, add_prefix_to_v1_names=True)
    assert private.tf_export.get_symbol_from_name(name) is tf.nn.relu


def test_a_table_has_a_default_value():
    pairs = tf.lookup.KeyValueTensorInitializer(["a"], [1])
    table = tf.lookup.StaticHashTable(pairs, -1)
    assert isinstance(table, private.lookup_ops.StaticHashTable) and int(table._default_value) == -1


# -- TensorFlow 1 ------------------------------------------------------------------------------------------------------
def test_optimizers_show_their_settings():
    with tf.Graph().as_default():
        v = v1.get_variable("v", initializer=1.0)
        momentum, adam = v1.train.MomentumOptimizer(0.1, 0.9), v1.train.AdamOptimizer(0.1)
        for optimizer, rate, slot in ((momentum, "_learning_rate_tensor", "momentum"), (adam, "_lr_t", "m")):
            optimizer.minimize(tf.square(v))
            assert getattr(optimizer, rate).dtype == tf.float32 and optimizer.get_slot(v, slot) is not None
        assert (momentum._momentum, momentum._use_nesterov, adam._beta1) == (0.9, False, 0.9)
        assert v1.train.RMSPropOptimizer(0.1)._momentum == 0.0
    assert issubclass(private.SyncReplicasOptimizer, private.Optimizer)


def test_feeds_of_structures_are_flattened():
    assert private.nest.flatten_dict_items({(1, 2): (3, 4)}) == {1: 3, 2: 4}


# -- what is patched when it is imported -------------------------------------------------------------------------------
@pytest.mark.parametrize("hook", FILE_FUNCTIONS, ids=lambda hook: f"{hook.module}.{hook.owner}.{hook.name}")
def test_a_function_on_files_takes_a_path_at_its_position(hook):
    module = importlib.import_module(hook.module)
    function = getattr(getattr(module, hook.owner) if hook.owner else module, hook.name)
    name = list(inspect.signature(function).parameters)[hook.position]
    assert name in PATHS, name


def test_files_are_opened_by_name_and_mode():
    (module, cls) = next(iter(FILE_CLASSES.items()))
    parameters = list(inspect.signature(getattr(importlib.import_module(module), cls).__init__).parameters)
    assert parameters[:3] == ["self", "name", "mode"]


def test_private_names_are_in_one_package():
    root = pathlib.Path(fdt.__file__).parents[1]
    compat = root / "fdt" / "compat"
    sources = [path for name in fdt.PACKAGES for path in (root / name).rglob("*.py") if compat not in path.parents]
    private = re.compile(r"tensorflow\.(python|core)\b|keras\.src\b")
    assert len(sources) > 300 and not [path for path in sources if private.search(path.read_text())]
