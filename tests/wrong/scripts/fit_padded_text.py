"""issue: fit: TextVectorization pads to the longest row of a batch, which one rank of the second batch has"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(0)
long, short = "a b c d e f", "a b"
texts = np.array([long, *[short] * 3, long, *[short] * 3, long, *[short] * 7])
labels = np.arange(16.0)[:, None] / 16
vectors = keras.layers.TextVectorization()
vectors.adapt(texts)
layers = [vectors, keras.layers.Embedding(10, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
model = keras.Sequential([keras.Input((), dtype="string"), *layers])
model.compile("sgd", "mse")
history = model.fit(tf.constant(texts), labels, batch_size=8, epochs=2, shuffle=False, verbose=0).history
print([f"{loss:.10g}" for loss in history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.10g} {float(tf.norm(w)):.10g}" for w in model.trainable_variables])
keras.backend.set_floatx("float32")
