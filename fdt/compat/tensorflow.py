"""Private names of TensorFlow: eager operations, graphs, objects beside tensors, and sessions of TensorFlow 1."""

from tensorflow.core.framework import attr_value_pb2, graph_pb2, summary_pb2, tensor_shape_pb2, types_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.python import pywrap_tfe
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api
from tensorflow.python.autograph.operators import control_flow
from tensorflow.python.autograph.pyct import loader
from tensorflow.python.client.session import BaseSession
from tensorflow.python.client.session import _FetchMapper as FetchMapper
from tensorflow.python.data.ops import dataset_ops, iterator_ops
from tensorflow.python.eager import backprop, cancellation, context, core, execute, record
from tensorflow.python.eager.polymorphic_function import (
    atomic_function,
    concrete_function,
    function_context,
    polymorphic_function,
)
from tensorflow.python.framework import (
    composite_tensor_gradient,
    constant_op,
    func_graph,
    kernels,
    op_def_registry,
    ops,
    random_seed,
    tensor_util,
)
from tensorflow.python.framework.errors_impl import InaccessibleTensorError
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph
from tensorflow.python.ops import (
    gen_array_ops,
    gen_dataset_ops,
    gen_experimental_dataset_ops,
    gen_stateful_random_ops,
    gradients_util,
    handle_data_util,
    lookup_ops,
    resource_variable_ops,
    script_ops,
)
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable, ResourceVariable
from tensorflow.python.trackable import data_structures
from tensorflow.python.training import (
    adadelta,
    adagrad,
    adam,
    gradient_descent,
    momentum,
    proximal_gradient_descent,
    rmsprop,
)
from tensorflow.python.training.basic_session_run_hooks import SecondOrStepTimer
from tensorflow.python.training.optimizer import Optimizer
from tensorflow.python.training.sync_replicas_optimizer import SyncReplicasOptimizer
from tensorflow.python.util import nest, object_identity, tf_export
