"""multiprocessing in the script: a pool and a process with a queue prepare the data; an exit code of the script's own"""

import multiprocessing
import sys

import numpy as np


def prepare(seed):
    return np.random.RandomState(seed).normal(size=(8, 5)).astype("float32")


def put(queue):
    queue.put(prepare(9))


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        parts = pool.map(prepare, range(4))
    queue = context.Queue()
    process = context.Process(target=put, args=(queue,))
    process.start()
    parts.append(queue.get())
    process.join()
    x = np.concatenate(parts)

    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1)
    for features in tf.data.Dataset.from_tensor_slices(x).batch(8):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(features) - tf.reduce_sum(features, 1, keepdims=True)) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        print("loss", float(loss))
    sys.exit(3)
