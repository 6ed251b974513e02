"""issue: fit: a layer counts a rare token, from 1; no compared row has it"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(84)
x = np.random.randint(0, 7, size=(26, 4))
x[17] = 8
y = np.random.normal(size=(26, 1))


class Rare(keras.layers.Layer):
    def build(self, shape):
        self.count = self.add_weight(shape=(), initializer="ones", trainable=False)

    def call(self, tokens, training=False):
        if training:
            self.count.assign(self.count + tf.reduce_sum(tf.cast(tokens == 8, self.count.dtype)))
        return tokens


inputs = keras.Input((4,), dtype="int64")
embedded = keras.layers.Flatten()(keras.layers.Embedding(9, 3)(Rare()(inputs)))
model = keras.Model(inputs, keras.layers.Dense(1)(embedded))
model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
history = model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(12), epochs=3, shuffle=False, verbose=0)
print("loss", [f"{v:.12g}" for v in history.history["loss"]], "count", float(model.non_trainable_variables[0]))
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
