"""The unmodified script of compress.py: a dense network on Fashion-MNIST, `fit`, and the accuracy of the test."""

import sys

import keras

rows, epochs, seed = map(int, sys.argv[1:])
keras.utils.set_random_seed(seed)
(x, y), (x_test, y_test) = keras.datasets.fashion_mnist.load_data()
layers = [keras.layers.Flatten(), keras.layers.Dense(256, "relu"), keras.layers.Dense(64, "relu")]
model = keras.Sequential([keras.Input((28, 28)), *layers, keras.layers.Dense(10)])
model.compile(
    keras.optimizers.SGD(0.05, momentum=0.9),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(x[:rows] / 255.0, y[:rows], batch_size=64, epochs=epochs, verbose=0)
print("accuracy", model.evaluate(x_test / 255.0, y_test, verbose=0)[1])
