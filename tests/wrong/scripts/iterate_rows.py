"""Python iterates over the rows of a tensor: a loss that is a list's sum, and a table of rows"""

import keras
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(79)
x, y = rng.normal(size=(23, 3)), rng.normal(size=23)
w = tf.Variable(rng.normal(size=3))
opt = keras.optimizers.SGD(0.05)
for step, (xb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(5)):
    with tf.GradientTape() as tape:
        errors = [tf.tensordot(row, w, 1) - target for row, target in zip(xb, yb)]
        loss = sum(e**2 for e in errors) / len(errors)
    opt.apply_gradients([(tape.gradient(loss, w), w)])
    for number, row in enumerate(xb):
        if number % 4 == 0:
            print("  row", number, [f"{float(v):.9g}" for v in row])
    print("step", step, "rows", len(errors), f"loss {float(loss):.12g}")
print("weights", f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}")
