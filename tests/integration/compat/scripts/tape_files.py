"""checkpoints with a manager, restored in the same run; tf.summary; CSV, plot and model saved, and loaded again"""

import csv
import os

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
x = np.random.normal(size=(40, 5)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(8)
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(0.1)
checkpoint = tf.train.Checkpoint(model=model)
manager = tf.train.CheckpointManager(checkpoint, "./checkpoints", max_to_keep=2)
writer = tf.summary.create_file_writer("logs/train")


def train(features, labels):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(features) - labels) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


losses = []
for epoch in range(3):
    for features, labels in dataset:
        loss = train(features, labels)
    losses.append(float(loss))
    with writer.as_default():
        tf.summary.write("loss", loss, step=epoch)
    print("epoch", epoch, losses[-1], os.path.basename(manager.save()))
kept = model.get_weights()
model.set_weights([np.zeros_like(w) for w in kept])
checkpoint.restore(manager.latest_checkpoint).expect_partial()
print("restored", all(np.allclose(a, b) for a, b in zip(kept, model.get_weights())))
if not os.path.exists("out"):
    os.makedirs("out")
with open("out/losses.csv", "w", newline="") as file:
    csv.writer(file).writerows([[v] for v in losses])
model.save("out/model.keras")
model.save_weights("out/model.weights.h5")
again = keras.models.load_model("out/model.keras")
print("loaded", np.allclose(again.predict(x, verbose=0), model.predict(x, verbose=0)))
again.load_weights("out/model.weights.h5")
plt.plot(np.loadtxt("out/losses.csv"))
plt.savefig("out/losses.png")
plt.show()
print("files", sorted(os.listdir("out")), sorted(os.listdir("checkpoints")))
