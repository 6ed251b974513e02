"""Eager operations: their execution, the tapes that record them, and the variables and generators that they change."""

from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import backprop, context, core, execute, record
from tensorflow.python.framework import composite_tensor_gradient, constant_op, random_seed
from tensorflow.python.ops import gen_array_ops, gen_stateful_random_ops, resource_variable_ops, script_ops
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable, ResourceVariable
