"""Checkpoints saved, training spoilt, restored and continued; model.save and load in the loop."""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(3)
import os
import tempfile

x, y = np.random.randn(27, 4), np.random.randn(27, 1)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(5, "relu"), keras.layers.Dense(1)])
opt = keras.optimizers.Adam(0.01)
w = tf.Variable(1.0, dtype=tf.float64)
folder = tempfile.mkdtemp()
step_count = tf.Variable(0, dtype=tf.int64)
ckpt = tf.train.Checkpoint(w=w, step=step_count, layers=model.layers)
manager = tf.train.CheckpointManager(ckpt, os.path.join(folder, "ck"), max_to_keep=2)
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(7)


@tf.function
def train(xb, yb):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((w * model(xb) - yb) ** 2)
    grads = tape.gradient(loss, [w, *model.trainable_variables])
    opt.apply_gradients(zip(grads, [w, *model.trainable_variables]))
    step_count.assign_add(1)
    return loss


best = np.inf
for epoch in range(2):
    for xb, yb in ds:
        loss = train(xb, yb)
        if loss < best:
            best = loss.numpy()
            model.save(os.path.join(folder, "best.keras"))
    manager.save()
    print(
        f"epoch {epoch} loss {loss.numpy():.12g} best {best:.12g} step {step_count.numpy()} {os.path.basename(manager.latest_checkpoint)}"
    )
w.assign(100.0)
ckpt.restore(manager.latest_checkpoint)
print("restored", w.numpy(), step_count.numpy(), len(manager.checkpoints))
again = keras.models.load_model(os.path.join(folder, "best.keras"))
print(f"{float(tf.reduce_sum(again(x))):.12g}")
for xb, yb in ds.take(2):
    print(f"{train(xb, yb):.12g}")
model.save_weights(os.path.join(folder, "w.weights.h5"))
model.load_weights(os.path.join(folder, "w.weights.h5"))
print("weights", *(f"{float(tf.reduce_sum(v)):.12g}" for v in model.weights), sorted(os.listdir(folder)))
