"""A tf.data pipeline (shuffle, augment, batch, prefetch) with callbacks, on scikit-learn's digits."""

import argparse

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

keras.utils.set_random_seed(args.seed)
digits = load_digits()
images, labels = digits.images[..., None].astype("float32") / 16.0, digits.target


def brighten(image, label):
    return tf.clip_by_value(image * 1.1, 0.0, 1.0), label


training = tf.data.Dataset.from_tensor_slices((images[:1500], labels[:1500]))
training = training.shuffle(1500, seed=args.seed).map(brighten).batch(args.batch_size).prefetch(tf.data.AUTOTUNE)
validation = tf.data.Dataset.from_tensor_slices((images[1500:], labels[1500:])).batch(100)

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3),
        keras.layers.BatchNormalization(),
        keras.layers.ReLU(),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(
    training,
    validation_data=validation,
    epochs=args.epochs,
    callbacks=[
        keras.callbacks.EarlyStopping("val_loss", patience=5, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau(patience=2),
    ],
    verbose=2,
)

_, accuracy = model.evaluate(validation, verbose=0)
print(f"test accuracy: {accuracy:.4f}")
