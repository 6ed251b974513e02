"""issue: an evaluation on whole arrays inside the training loop, behind each step: a count and a summed loss"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(122)
x = np.random.normal(size=(35, 4))
y = (x[:, 0] + x[:, 1] > 0).astype("float64")[:, None]
x_test, y_test = tf.constant(x[:13]), tf.constant(y[:13])
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
opt = keras.optimizers.Adam(0.02)


@tf.function
def evaluate(features, labels):
    logits = model(features, training=False)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
    return tf.reduce_sum(losses), tf.math.count_nonzero((logits > 0) == (labels > 0.5))


for step, (xb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(yb, model(xb)))
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    total, right = evaluate(x_test, y_test)
    near = tf.reduce_sum(tf.cast(tf.abs(tf.sigmoid(model(x_test)) - y_test) < 0.5, tf.int32))
    print("step", step, f"loss {float(loss):.12g} test {float(total):.12g} {int(right)} {int(near)} of {len(x_test)}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
