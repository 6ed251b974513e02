"""Dataset.from_generator, and a plain Python generator."""

import numpy as np, tensorflow as tf, keras

keras.utils.set_random_seed(0)
x = np.random.normal(size=(40, 5)).astype("float32")
y = x.sum(1, keepdims=True)


def rows():
    for a, b in zip(x, y):
        yield a, b


ds = tf.data.Dataset.from_generator(rows, output_signature=(tf.TensorSpec((5,)), tf.TensorSpec((1,)))).batch(7)
m = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
m.compile("sgd", "mse")
print("loss", m.fit(ds, epochs=2, verbose=0).history["loss"])


def gen():
    while True:
        for i in range(0, 40, 8):
            yield x[i : i + 8], y[i : i + 8]


print("loss", m.fit(gen(), steps_per_epoch=5, epochs=2, verbose=0).history["loss"])
