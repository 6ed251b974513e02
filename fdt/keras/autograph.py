"""Call a script's train_step as Keras would: tf_keras has autograph rewrite it, Keras 3 has not."""

from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api


def call(flavor: str, function: Any, *args: Any) -> Any:
    """`function(*args)`, though our own code around it is never rewritten."""
    if flavor != "tf_keras" or tf.executing_eagerly():
        return function(*args)
    with ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED):
        return api.tf_convert(function, ag_ctx.control_status_ctx())(*args)
