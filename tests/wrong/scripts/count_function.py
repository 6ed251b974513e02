"""issue: a tf.function returns how many rows were right; the loop divides it by len(y)"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(21)
x = np.random.normal(size=(35, 4))
y = (x[:, 0] > 0).astype("int64")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
opt = keras.optimizers.SGD(0.5)


@tf.function
def train_step(xb, yb):
    with tf.GradientTape() as tape:
        logits = model(xb)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(yb, logits))
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss, tf.reduce_sum(tf.cast(tf.argmax(logits, 1) == yb, tf.int32))


seen = right = 0
for step, (xb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)):
    loss, correct = train_step(xb, yb)
    seen += len(yb)
    right += int(correct)
    print("step", step, f"loss {float(loss):.12g} accuracy {int(correct) / len(yb):.6f} so far {right} of {seen}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
