"""freeze, fit, unfreeze, recompile, fit; the model nested in another; weights carried over."""

import numpy as np, keras

keras.utils.set_random_seed(0)
x = np.random.normal(size=(40, 5)).astype("float32")
y = x.sum(1, keepdims=True)
base = keras.Sequential([keras.Input((5,)), keras.layers.Dense(6, activation="relu")], name="base")
out = keras.Sequential([base, keras.layers.Dense(1)])
base.trainable = False
out.compile(keras.optimizers.SGD(0.05), "mse")
before = base.get_weights()[0].copy()
print(
    "frozen",
    out.fit(x, y, epochs=2, batch_size=8, shuffle=False, verbose=0).history["loss"],
    np.allclose(before, base.get_weights()[0]),
)
base.trainable = True
out.compile(keras.optimizers.Adam(0.01), "mse")
print(
    "tuned",
    out.fit(x, y, epochs=2, batch_size=8, shuffle=False, verbose=0).history["loss"],
    np.allclose(before, base.get_weights()[0]),
)
clone = keras.models.clone_model(out)
clone.set_weights(out.get_weights())
clone.compile("sgd", "mse")
print("clone", clone.evaluate(x, y, verbose=0))
