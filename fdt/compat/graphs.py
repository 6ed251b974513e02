"""Graphs: functions and their traces, AutoGraph, the registries of operations, and the messages that describe them."""

from tensorflow.core.framework import attr_value_pb2, graph_pb2, summary_pb2, tensor_shape_pb2, types_pb2
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api
from tensorflow.python.autograph.operators import control_flow
from tensorflow.python.autograph.pyct import loader
from tensorflow.python.eager.polymorphic_function import (
    atomic_function,
    concrete_function,
    function_context,
    polymorphic_function,
)
from tensorflow.python.framework import func_graph, kernels, op_def_registry, ops, tensor_util
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph
from tensorflow.python.ops import handle_data_util
