"""a learning rate that the loop sets: warm-up, then halved when the loss did not fall; best weights are restored"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(90)
x, y = np.random.normal(size=(35, 4)), np.random.normal(size=(35, 1)) * 3
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="relu"), keras.layers.Dense(1)])
opt = keras.optimizers.SGD(0.01)
best, best_weights, previous = np.inf, None, np.inf
for step, (xb, yb) in enumerate(ds):
    if step < 2:
        opt.learning_rate = 0.05 * (step + 1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((model(xb) - yb) ** 2) / 8
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    if loss >= previous:
        opt.learning_rate = opt.learning_rate / 2
    if loss < best:
        best, best_weights = loss.numpy(), model.get_weights()
    previous = loss
    print("step", step, f"loss {loss:.12g} rate {float(opt.learning_rate):.6g} best {best:.12g}")
model.set_weights(best_weights)
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
