"""counts.py with a loop of the script's own. `counts_loop.py EPOCHS DEPTH`: its step is traced, for seconds."""

import sys

import keras
import numpy as np
import tensorflow as tf

ROWS, BATCH, EPOCHS = 512, 4, int(sys.argv[1])
DEPTH = int(sys.argv[2]) if len(sys.argv) > 2 else 0

layer = keras.layers.Dense(1, use_bias=False)
layer.build((None, ROWS))
layer.set_weights([np.zeros((ROWS, 1), np.float32)])
optimizer = keras.optimizers.SGD(1.0)
dataset = tf.data.Dataset.from_tensor_slices(np.eye(ROWS, dtype="float32")).batch(BATCH)


def step(batch):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(layer(batch))
        for _ in range(DEPTH):
            loss = loss * 1.0
    gradients = tape.gradient(loss, layer.trainable_variables)
    optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))


step = tf.function(step) if DEPTH else step
print("fit begins", flush=True)
for epoch in range(EPOCHS):
    print(f"epoch {epoch} begins", flush=True)
    for batch in dataset:
        step(batch)
counts = -layer.get_weights()[0].ravel() * BATCH
print("counted right" if (counts == EPOCHS).all() else f"counted wrong: {counts.min()} to {counts.max()}", flush=True)
