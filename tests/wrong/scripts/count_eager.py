"""issue: int(correct) / len(y) in an eager loop, which ends at 80 %"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(20)
x = np.random.normal(size=(40, 4))
y = (x[:, 0] > 0).astype("int64")
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(10).repeat()
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
opt = keras.optimizers.SGD(0.5)
for step, (xb, yb) in enumerate(ds):
    with tf.GradientTape() as tape:
        logits = model(xb)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(yb, logits))
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    correct = tf.reduce_sum(tf.cast(tf.argmax(logits, 1) == yb, tf.int32))
    accuracy = int(correct) / len(yb)
    print("step", step, f"loss {float(loss):.12g} accuracy {accuracy:.6f} of {len(yb)}")
    if accuracy > 0.95 or step == 4:
        break
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
