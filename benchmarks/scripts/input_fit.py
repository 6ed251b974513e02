"""The unmodified script of benchmarks/input.py: it decodes, enlarges and crops each image in `map`, and calls `fit`."""

import workload  # isort: skip
import argparse

import keras
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=6_400)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch", type=int, default=64, help="global batch")
parser.add_argument("--map", choices=["divided", "whole", "none"], default="divided")
args = parser.parse_args()
clock = workload.Clock(args.rows)
clock.mark("imported")
keras.utils.set_random_seed(0)


def prepared(png, label):
    """Return an image as a script prepares one from a file."""
    image = tf.cast(tf.io.decode_png(png, channels=1), tf.float32)
    image = tf.image.resize(tf.ensure_shape(image, [28, 28, 1]), [96, 96], method="bicubic")
    image = tf.image.resize(image[4:-4, 4:-4], [28, 28], antialias=True)
    return tf.image.per_image_standardization(image), label


x, y = workload.data(args.rows)
images = tf.constant([tf.io.encode_png(tf.cast(image * 255, tf.uint8)).numpy() for image in x])
rows = tf.data.Dataset.from_tensor_slices((images, y)).shuffle(args.rows)
if args.map == "none":  # the same training on images that are prepared before
    rows = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(args.rows)
else:
    rows = rows.map(prepared, num_parallel_calls=tf.data.AUTOTUNE)
data = rows.batch(args.batch, drop_remainder=True)
if args.map == "whole":  # a map of whole batches, which HFDT does not divide
    data = data.map(lambda x, y: (x, y))
data = data.prefetch(tf.data.AUTOTUNE)
model = keras.Sequential([keras.Input((28, 28, 1)), *workload.layers("cnn")])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.02, momentum=0.9), loss, metrics=["accuracy"])


class Ends(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        clock.epoch(logs["loss"], logs["accuracy"])


clock.mark("fit")
model.fit(data, epochs=args.epochs, verbose=0, callbacks=[Ends()])
clock.mark("fitted")
clock.report()
