"""a mean teacher: an EMA of the weights makes targets for the rows without labels"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(61)
x = np.random.normal(size=(35, 5))
y = np.where(np.arange(35) % 3 == 0, np.random.randint(0, 2, 35), -1)
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
student = keras.Sequential([keras.Input((5,)), keras.layers.Dense(6, activation="relu"), keras.layers.Dense(2)])
teacher = keras.models.clone_model(student)
teacher.set_weights(student.get_weights())
opt = keras.optimizers.SGD(0.2)


@tf.function
def train_step(xb, yb):
    labelled = yb >= 0
    with tf.GradientTape() as tape:
        logits = student(xb, training=True)
        ce = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(yb, 0), logits)
        supervised = tf.reduce_sum(tf.where(labelled, ce, 0.0)) / tf.reduce_sum(tf.cast(labelled, tf.float64))
        targets = tf.nn.softmax(teacher(xb, training=False))
        consistency = tf.reduce_mean((tf.nn.softmax(logits) - targets) ** 2)
        loss = supervised + 2.0 * consistency
    opt.apply_gradients(zip(tape.gradient(loss, student.trainable_variables), student.trainable_variables))
    for slow, fast in zip(teacher.variables, student.variables):
        slow.assign(0.95 * slow + 0.05 * fast)
    return supervised, consistency


for step, (xb, yb) in enumerate(ds):
    supervised, consistency = train_step(xb, yb)
    print("step", step, f"supervised {float(supervised):.12g} consistency {float(consistency):.12g}")
print(
    "weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in student.weights + teacher.weights]
)
