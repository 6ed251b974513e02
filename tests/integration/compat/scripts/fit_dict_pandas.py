"""dict inputs and pandas columns."""

import numpy as np, pandas as pd, keras

keras.utils.set_random_seed(0)
df = pd.DataFrame({"a": np.random.normal(size=40), "b": np.random.normal(size=40)})
df["y"] = df.a + df.b
a, b = keras.Input((1,), name="a"), keras.Input((1,), name="b")
m = keras.Model({"a": a, "b": b}, keras.layers.Dense(1)(keras.layers.Concatenate()([a, b])))
m.compile("sgd", "mse")
print(
    "loss",
    m.fit({"a": df.a.values, "b": df.b.values}, df.y.values, batch_size=8, shuffle=False, epochs=2, verbose=0).history[
        "loss"
    ],
)
m2 = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
m2.compile("sgd", "mse")
print("loss", m2.fit(df[["a", "b"]], df["y"], batch_size=8, shuffle=False, epochs=2, verbose=0).history["loss"])
