"""issue: fit: texts with a mask, so that padding does not count; those of the first batch have one length"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(86)
rng = np.random.default_rng(6)
lengths = np.concatenate([np.full(12, 5), rng.integers(3, 9, 14)])
x = np.array([" ".join(f"w{n}" for n in rng.integers(0, 20, length)) for length in lengths])
y = rng.normal(size=(26, 1))
text = keras.layers.TextVectorization(30)
text.adapt(x)
layers = keras.layers
model = keras.Sequential(
    [
        keras.Input((), dtype="string"),
        text,
        layers.Embedding(30, 3, mask_zero=True),
        layers.GRU(4, return_sequences=True),
        layers.Dropout(0.0),
        layers.GlobalAveragePooling1D(),
        layers.Dense(1),
    ]
)
model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
history = model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(12), epochs=3, shuffle=False, verbose=0)
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
