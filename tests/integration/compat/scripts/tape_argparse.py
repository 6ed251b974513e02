"""argparse, input(), relative paths, getcwd, a download kept by get_file, prints in functions, an atexit"""

import argparse
import atexit
import os
import pathlib

import keras
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3)
arguments = parser.parse_args()
pathlib.Path("source.txt").write_text("41")
fetched = keras.utils.get_file("compat_source.txt", pathlib.Path("source.txt").resolve().as_uri(), cache_dir="cache")
try:
    answer = input("how many rows? ")
except EOFError:
    answer = open(fetched).read()
atexit.register(lambda: open("atexit.txt", "a").write("once\n"))
with open("appended.txt", "a") as file:
    file.write("once\n")
rows = int(answer)
keras.utils.set_random_seed(1)
x = np.random.normal(size=(rows, 5)).astype("float32")
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.1)
dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(8)
for features, labels in dataset.take(arguments.steps):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(features) - labels) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    print("loss", float(loss), tf.reduce_mean(labels).numpy())
print(open("appended.txt").read().strip(), os.path.basename(os.getcwd()) != "", os.path.basename(__file__))
