"""gradients of two batches accumulated by hand, an embedding's among them; EMA of the weights in the optimizer"""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
tokens = np.random.randint(0, 20, (48, 6))
labels = (tokens.sum(1) % 2).astype("float32")[:, None]
dataset = tf.data.Dataset.from_tensor_slices((tokens, labels)).batch(8)
layers = [keras.layers.Embedding(20, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
model = keras.Sequential([keras.Input((6,)), *layers])
optimizer = keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.9)
loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
for epoch in range(2):
    held = [tf.zeros_like(v) for v in model.trainable_variables]
    for number, (x, y) in enumerate(dataset):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        held = [h + tf.convert_to_tensor(g) / 2 for h, g in zip(held, gradients)]
        if number % 2:
            optimizer.apply_gradients(zip(held, model.trainable_variables))
            held = [tf.zeros_like(v) for v in model.trainable_variables]
    with tf.GradientTape() as tape:
        whole = loss_fn(labels, model(tokens))
    print("epoch", epoch, float(loss), float(whole))
print("weights", [float(np.abs(w).sum()) for w in model.get_weights()])
