"""issue: fit: data of unknown length, for which Keras counts an update more in each epoch and tf_keras in the first"""

import warnings

import keras
import numpy as np
import tensorflow as tf
import tf_keras

warnings.filterwarnings("ignore", "Your input ran out of data")
draws = np.random.RandomState(0)
x = draws.randn(30, 3)
y = x.sum(axis=1, keepdims=True)
data = tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda row, label: row[0] < 1.5).batch(8)

for library in (keras, tf_keras):
    library.backend.set_floatx("float64")
    library.utils.set_random_seed(1)
    model = library.Sequential([library.Input((3,)), library.layers.Dense(1)])
    model.compile(library.optimizers.Adam(0.05), "mse")
    history = model.fit(data, epochs=3, shuffle=False, verbose=0)
    print("loss", [f"{loss:.12g}" for loss in history.history["loss"]], int(model.optimizer.iterations))
    print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
