"""counts.py with a training loop of the script's own."""

import sys

import keras
import numpy as np
import tensorflow as tf

ROWS, BATCH, EPOCHS = 512, 4, int(sys.argv[1])

layer = keras.layers.Dense(1, use_bias=False)
layer.build((None, ROWS))
layer.set_weights([np.zeros((ROWS, 1), np.float32)])
optimizer = keras.optimizers.SGD(1.0)
dataset = tf.data.Dataset.from_tensor_slices(np.eye(ROWS, dtype="float32")).batch(BATCH)
print("fit begins", flush=True)
for epoch in range(EPOCHS):
    print(f"epoch {epoch} begins", flush=True)
    for batch in dataset:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(layer(batch))
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
counts = -layer.get_weights()[0].ravel() * BATCH
print("counted right" if (counts == EPOCHS).all() else f"counted wrong: {counts.min()} to {counts.max()}", flush=True)
