"""preprocessing adapted before, augmentation layers inside."""

import numpy as np, keras

keras.utils.set_random_seed(0)
x = np.random.normal(size=(40, 8, 8, 1)).astype("float32")
y = (x.mean((1, 2, 3)) > 0).astype(int)
n = keras.layers.Normalization()
n.adapt(x)
m = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        n,
        keras.layers.RandomFlip(),
        keras.layers.RandomRotation(0.1),
        keras.layers.Flatten(),
        keras.layers.Dense(2),
    ]
)
m.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
h = m.fit(x, y, epochs=2, batch_size=8, verbose=0)
print("keys", sorted(h.history))
m.save("m.keras")
k = keras.models.load_model("m.keras")
print("same", np.allclose(k.predict(x, verbose=0), m.predict(x, verbose=0)))
