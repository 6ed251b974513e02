"""A call of a script's train_step as its Keras makes it: tf_keras converts it by AutoGraph, Keras 3 does not."""

from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api


def call(flavor: str, function: Any, *args: Any) -> Any:
    """Return `function(*args)`. Only the script's function is converted, not this project's code around it."""
    if flavor != "tf_keras" or tf.executing_eagerly():
        return function(*args)
    with ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED):
        return api.tf_convert(function, ag_ctx.control_status_ctx())(*args)
