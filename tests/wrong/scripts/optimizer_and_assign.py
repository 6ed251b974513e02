"""issue: apply_gradients for some variables, assign_sub for one more (a log temperature)"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(10)
x = np.random.normal(size=(35, 6))
y = np.random.randint(0, 3, 35)
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)])
log_temperature = tf.Variable(0.5, dtype=tf.float64)
opt = keras.optimizers.Adam(0.01)
for step, (xb, yb) in enumerate(ds):
    with tf.GradientTape() as tape:
        logits = model(xb) * tf.exp(-log_temperature)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(yb, logits))
    *grads, dt = tape.gradient(loss, model.trainable_variables + [log_temperature])
    opt.apply_gradients(zip(grads, model.trainable_variables))
    log_temperature.assign_sub(0.3 * dt)
    print("step", step, f"loss {float(loss):.12g} temperature {float(tf.exp(log_temperature)):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
