"""a whole epoch inside one tf.function: `for batch in dataset` in the graph"""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
x = np.random.normal(size=(45, 5)).astype("float32")
y = x.sum(1, keepdims=True)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(0.05)
optimizer.build(model.trainable_variables)
mean = keras.metrics.Mean()


@tf.function
def epoch(dataset):
    last = 0.0
    for features, labels in dataset:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(labels - model(features, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        mean.update_state(loss)
    return last


for number in range(2):
    epoch(dataset)
    print("epoch", number, float(mean.result()))
    mean.reset_state()
print("weights", [float(np.abs(w).sum()) for w in model.get_weights()])
