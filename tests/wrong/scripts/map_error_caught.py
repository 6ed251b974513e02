"""a map of rows that fails for some rows: the loop catches the error and goes on with the next batch"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(32)
x = np.random.normal(size=(48, 4))
good = np.where(np.arange(48) == 21, 99, 1)  # row 21, of the second rank's part of the third batch, fails


def checked(row, index):
    return row, tf.gather(row, index)


ds = tf.data.Dataset.from_tensor_slices((x, good)).map(checked).batch(8)
w = tf.Variable(tf.zeros([4], tf.float64))
opt = keras.optimizers.SGD(0.1)
batches = iter(ds)
step = 0
while True:
    try:
        xb, yb = next(batches)
    except tf.errors.InvalidArgumentError:
        print("a batch is left out")
        continue
    except StopIteration:
        break
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.linalg.matvec(xb, w) - yb) ** 2)
    opt.apply_gradients([(tape.gradient(loss, w), w)])
    print("step", step, f"loss {float(loss):.12g}")
    step += 1
print("weights", f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}")
