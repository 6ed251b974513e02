"""mixed precision with its LossScaleOptimizer, compute_loss overridden, TensorBoard, a file fetched, atexit"""

import atexit
import os
import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf


class Robust(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        error = tf.abs(tf.cast(y, tf.float32) - tf.cast(y_pred, tf.float32))
        return tf.reduce_mean(tf.minimum(error, 3.0))


keras.mixed_precision.set_global_policy("mixed_float16")
keras.utils.set_random_seed(1)
work = tempfile.mkdtemp()
here = pathlib.Path(__file__).resolve()
fetched = keras.utils.get_file("copy.py", origin=here.as_uri(), cache_dir=work)
print("fetched", os.path.getsize(fetched) == here.stat().st_size)
left, right = np.random.normal(size=(2, 48, 5)).astype("float32")
inputs = [keras.Input((5,)), keras.Input((5,))]
joined = keras.layers.Concatenate()(inputs)
outputs = keras.layers.Dense(1, dtype="float32")(keras.layers.Dense(8, activation="tanh")(joined))
model = Robust(inputs, outputs)
model.compile(keras.optimizers.SGD(0.1))
print(type(model.optimizer).__name__)
atexit.register(lambda: print("at exit", os.path.exists("logs/train")))
history = model.fit(
    [left, right],
    (left + right).sum(1, keepdims=True),
    batch_size=8,
    epochs=3,
    verbose=0,
    callbacks=[keras.callbacks.TensorBoard("logs")],
)
print("better", history.history["loss"][-1] < history.history["loss"][0], history.history["loss"])
keras.config.set_dtype_policy("float32")
