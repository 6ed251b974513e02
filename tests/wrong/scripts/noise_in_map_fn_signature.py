import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(7)
x, y = np.random.normal(size=(35, 4)), np.random.normal(size=(35, 1))
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
w = tf.Variable(tf.ones((4, 1), tf.float64))


@tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float64), tf.TensorSpec((None, 1), tf.float64)])
def step(xb, yb):
    with tf.GradientTape() as tape:
        noisy = tf.map_fn(lambda row: row + 0.3 * tf.random.normal((4,), dtype=tf.float64), xb)
        loss = tf.reduce_mean((tf.matmul(noisy, w) - yb) ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    return loss


for epoch in range(2):
    for xb, yb in ds:
        print(f"{float(step(xb, yb)):.12g}")
print(f"weights {float(tf.reduce_sum(w)):.12g}")
