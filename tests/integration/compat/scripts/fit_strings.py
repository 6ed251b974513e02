"""strings through TextVectorization inside the model."""

import numpy as np, tensorflow as tf, keras

keras.utils.set_random_seed(0)
texts = np.array(
    [f"the {a} is {b}" for a in ("cat", "dog", "sun", "sea") for b in ("good", "bad", "red", "big", "old")]
)
y = np.array([float(len(t) % 2) for t in texts])[:, None]
v = keras.layers.TextVectorization(max_tokens=30, output_sequence_length=5)
v.adapt(texts)
m = keras.Sequential(
    [
        keras.Input((), dtype="string"),
        v,
        keras.layers.Embedding(30, 4),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(1),
    ]
)
m.compile("sgd", "mse")
h = m.fit(tf.constant(texts), y, batch_size=6, epochs=2, shuffle=False, verbose=0)
print("loss", h.history["loss"])
print("predict", m.predict(tf.constant(texts[:2]), verbose=0).ravel())
