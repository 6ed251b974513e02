"""issue: fit: shuffled pipelines that were read before or not, a generator, a PyDataset: each epoch's order"""

import itertools
import warnings

import keras
import numpy as np
import tensorflow as tf

warnings.filterwarnings("ignore", message="Your input ran out of data")
keras.backend.set_floatx("float64")
keras.utils.set_random_seed(71)
x = np.random.normal(size=(24, 6))
y = np.random.normal(size=(24, 1))


def shuffled():
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(24, seed=5).batch(8)


class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return x[8 * index : 8 * index + 8], y[8 * index : 8 * index + 8]


def looked_at(data):
    next(iter(data.take(1)))
    return data


twice = shuffled()
DATA = {
    "known": (shuffled(), None),
    "as many steps": (shuffled(), 3),
    "unknown": (shuffled().filter(lambda *_: True), None),
    "repeated": (shuffled().repeat(), 2),
    "cached": (shuffled().cache(), None),
    "generator": (((x[n : n + 8], y[n : n + 8]) for n in itertools.cycle((0, 8, 16))), 2),
    "dataset": (Rows(), None),
    "looked at": (looked_at(shuffled()), None),
    "looked at and cached": (looked_at(shuffled()).cache(), None),
    "first fit": (twice, None),
    "second fit": (twice.prefetch(1), 2),
}
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
start = model.get_weights()
for name, (data, steps) in DATA.items():
    keras.utils.set_random_seed(72)
    model.set_weights(start)
    history = model.fit(data, epochs=3, steps_per_epoch=steps, shuffle=False, verbose=0)
    print(name, int(model.optimizer.iterations), [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
print("read after both fits", f"{float(tf.reduce_sum(next(iter(twice))[1])):.12g}")
