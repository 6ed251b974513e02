"""placements: an LSTM and a loop over time by hand, divided within, in a tf.function with both gradients"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(61)
x = np.random.uniform(-1, 1, (31, 6, 3))
y = np.random.uniform(-1, 1, (31, 2))
model = keras.Sequential(
    [keras.Input((6, 3)), keras.layers.LSTM(5, return_sequences=True), keras.layers.Bidirectional(keras.layers.GRU(4))]
)
head, recurrent = tf.Variable(np.random.normal(size=(8, 2))), tf.Variable(np.random.normal(size=(2, 2)))
weights = [*model.trainable_variables, head, recurrent]
opt = keras.optimizers.Adam(0.02)


@tf.function(reduce_retracing=True)
def train_step(rows, targets):
    with tf.GradientTape() as tape:
        start = model(rows, training=True) @ head
        state = start
        outputs = tf.TensorArray(tf.float64, size=3)
        for t in tf.range(3):
            state = tf.tanh(state @ recurrent + start)
            outputs = outputs.write(t, state)
        loss = tf.reduce_mean((tf.reduce_mean(outputs.stack(), 0) - targets) ** 2)
        if loss > 0.5:
            loss = loss + 0.01 * tf.reduce_sum(recurrent**2)
    opt.apply_gradients(zip(tape.gradient(loss, weights), weights))
    return loss


for step, (rows, targets) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(7)):
    print("step", step, "loss", f"{float(train_step(rows, targets)):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in weights])
