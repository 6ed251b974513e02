"""issue: fit: the script changes its folder and its environment, which its data and its layers read in workers"""

import os
import tempfile

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(87)
x = np.random.normal(size=(26, 6))
y = np.random.normal(size=(26, 1))
before, pwd = os.getcwd(), os.environ.pop("PWD", None)
os.environ["FIT_SCALE"] = "1"


class Read(keras.layers.Layer):
    def call(self, x):
        length = tf.cast(tf.strings.length(tf.io.read_file("note.txt")), x.dtype)
        return x * length * float(os.environ["FIT_SCALE"]) / (2.0 if "PWD" in os.environ else 1.0)


def fit(data, folder, note, scale, **more):
    os.chdir(folder)
    with open("note.txt", "w") as file:
        file.write(note)
    os.environ["FIT_SCALE"] = scale
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
    history = model.fit(data, epochs=2, shuffle=False, verbose=0, **more)
    print("loss", [f"{v:.12g}" for v in history.history["loss"]])


known = tf.data.experimental.assert_cardinality(3)


def parse(line):
    row = tf.ensure_shape(tf.strings.to_number(tf.strings.split(line), tf.float64), (7,))
    return row[:6], row[6:]


with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
    model = keras.Sequential([keras.Input((6,)), Read(), keras.layers.Dense(1)])
    np.savetxt(os.path.join(one, "rows.txt"), np.hstack([x, y]))
    fit(tf.data.TextLineDataset("rows.txt").map(parse).batch(12).apply(known), one, "a", "0.5")
    fit(x, two, "abc", "0.25", y=y, batch_size=12)
    fit(x, two, "abc", "0.75", y=y, batch_size=12)
    os.chdir(before)
del os.environ["FIT_SCALE"]
if pwd is not None:
    os.environ["PWD"] = pwd
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
