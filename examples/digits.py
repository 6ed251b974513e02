"""Handwritten digits: a small convolutional network on the 1,797 images that scikit-learn brings along: no download."""

import argparse
import time

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


class Throughput(keras.callbacks.Callback):
    """Samples per second, the first epoch (in which everything is compiled) left out."""

    def __init__(self, samples):
        super().__init__()
        self.samples, self.seconds = samples, []

    def on_epoch_begin(self, epoch, logs=None):
        self.started = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(time.perf_counter() - self.started)

    def on_train_end(self, logs=None):
        later = self.seconds[1:] or self.seconds
        print(f"throughput: {self.samples * len(later) / sum(later):.0f} samples/s")


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

keras.utils.set_random_seed(args.seed)
digits = load_digits()
images = digits.images[..., None].astype("float32") / 16.0
x_train, x_test, y_train, y_test = train_test_split(images, digits.target, test_size=0.2, random_state=0)

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer=keras.optimizers.SGD(0.02, momentum=0.9),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(
    x_train,
    y_train,
    batch_size=args.batch_size,
    epochs=args.epochs,
    validation_data=(x_test, y_test),
    callbacks=[Throughput(len(x_train))],
    verbose=2,
)

_, accuracy = model.evaluate(x_test, y_test, verbose=0)
print(f"test accuracy: {accuracy:.4f}")
