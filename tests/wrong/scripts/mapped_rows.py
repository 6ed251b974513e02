"""a map of rows before batch, read whole by NumPy, by a thread and by a second iterator; shuffles, a short last batch"""

import threading

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(31)
x = np.random.normal(size=(19, 4))
y = np.random.randint(0, 3, 19)


def prepared(row, label):
    return (row - 0.5) * tf.cast(label + 1, tf.float64), {"label": label, "weight": 1.0 + tf.abs(row[0])}


ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(19).map(prepared, num_parallel_calls=2).batch(8).prefetch(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(3)])
opt = keras.optimizers.SGD(0.2)
seen = []


@tf.function
def update(xb, target):
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(target["label"], model(xb))
        loss = tf.reduce_sum(losses * target["weight"]) / tf.reduce_sum(target["weight"])
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


step = 0
for epoch in range(2):
    for xb, target in ds:
        loss = update(xb, target)
        if step < 5:
            print("step", step, f"loss {float(loss):.12g}", "rows", xb.shape[0], len(target["label"]))
        if step == 1:
            print("  mean", f"{np.mean(xb):.12g}", "labels", np.asarray(target["label"]).tolist())
        if step == 2:  # the last batch of an epoch, read by a thread
            thread = threading.Thread(target=lambda read=xb: seen.append(read.numpy().sum()))
            thread.start()
            thread.join()
            print("  sum", f"{seen[0]:.12g}")
        step += 1
        if step == 5:
            break
    first, _ = next(iter(ds))
    print("another iterator", f"{float(tf.reduce_sum(first)):.12g}")
for v in model.trainable_variables:
    print(v.path.split("/")[-1], f"{float(tf.reduce_sum(tf.abs(v))):.12g} {float(tf.norm(v)):.12g}")
