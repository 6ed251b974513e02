"""two tasks: each loss is divided by its own running magnitude; one is a sum, one a mean"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(92)
x = np.random.normal(size=(35, 5))
ds = tf.data.Dataset.from_tensor_slices((x, {"a": x[:, :1] * 5, "b": np.random.randint(0, 3, 35)})).batch(8)
inputs = keras.Input((5,))
hidden = keras.layers.Dense(6, activation="tanh")(inputs)
model = keras.Model(inputs, {"a": keras.layers.Dense(1)(hidden), "b": keras.layers.Dense(3)(hidden)})
opt = keras.optimizers.Adam(0.01)
scale = tf.Variable([1.0, 1.0], dtype=tf.float64, trainable=False)


@tf.function
def train_step(xb, yb):
    with tf.GradientTape() as tape:
        out = model(xb, training=True)
        a = tf.reduce_sum(tf.abs(out["a"] - yb["a"]))
        b = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(yb["b"], out["b"], from_logits=True))
        both = tf.stack([a, b])
        loss = tf.reduce_sum(both / scale)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    scale.assign(0.5 * scale + 0.5 * both)
    return both


for step, (xb, yb) in enumerate(ds):
    print("step", step, "losses", [f"{float(v):.12g}" for v in train_step(xb, yb)])
print(
    "weights",
    *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in [*model.trainable_variables, scale]],
)
