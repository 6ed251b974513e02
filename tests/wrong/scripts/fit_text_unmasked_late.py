"""issue: fit: a masked text beside one whose padded places count after the first steps"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(86)
rng = np.random.default_rng(6)
lengths = np.concatenate([np.full(8, 2), rng.integers(1, 4, 24)])
texts = [" ".join(f"w{n}" for n in rng.integers(0, 20, length)) for length in lengths]
x, y = np.array(texts), rng.normal(size=(32, 1)) + 2.0
layers = keras.layers
text = layers.TextVectorization(30)
text.adapt(x)
known = rng.normal(size=(30, 3))
known[0] = 0  # a padded place


class Texts(keras.Model):
    def call(self, inputs, training=None, mask=None):
        return super().call(inputs, training=training, mask=mask)


words = text(given := keras.Input((), dtype="string"))
masked = layers.GlobalAveragePooling1D()(layers.Embedding(30, 2, mask_zero=True)(words))
places = layers.Embedding(30, 3, trainable=False, embeddings_initializer=keras.initializers.Constant(known))(words)
convolved = layers.Conv1D(4, 1, activation="relu", bias_initializer=keras.initializers.Constant(-0.05))(places)
joined = layers.Concatenate()([masked, layers.GlobalMaxPooling1D()(convolved)])
model = Texts(given, layers.Dense(1, kernel_initializer="ones")(joined))
model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
history = model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(8), epochs=6, shuffle=False, verbose=0)
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
