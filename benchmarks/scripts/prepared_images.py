"""The data of benchmarks/input.py: a `map` decodes, enlarges and crops each image, as from files."""

import workload  # isort: skip
import argparse

import tensorflow as tf


def prepared(png, label):
    """Return an image as a script prepares one from a file."""
    image = tf.cast(tf.io.decode_png(png, channels=1), tf.float32)
    image = tf.image.resize(tf.ensure_shape(image, [28, 28, 1]), [96, 96], method="bicubic")
    image = tf.image.resize(image[4:-4, 4:-4], [28, 28], antialias=True)
    return tf.image.per_image_standardization(image), label


def batches(args: argparse.Namespace) -> tf.data.Dataset:
    """Return batches of images, in an order that is new in every epoch."""
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
    return data.prefetch(tf.data.AUTOTUNE)
