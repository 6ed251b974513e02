"""placements: attention with dropout, in a tf.function; random numbers are those of the seed"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(39)
x = np.random.normal(size=(33, 4, 6))
y = x.mean((1, 2))[:, None]
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
inputs = keras.Input((4, 6))
attended = keras.layers.MultiHeadAttention(2, 3, dropout=0.2, seed=1)(inputs, inputs)
hidden = keras.layers.LayerNormalization()(inputs + attended)
hidden = keras.layers.Dropout(0.3, seed=2)(keras.layers.GlobalAveragePooling1D()(hidden))
model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
opt = keras.optimizers.Adam(0.01)


@tf.function
def train_step(xb, yb):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(xb, training=True) - yb))
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


for step, (xb, yb) in enumerate(ds):
    print("step", step, "loss", f"{float(train_step(xb, yb)):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
