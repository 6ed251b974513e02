"""a loop over hyper-parameters: a new model each, clear_session between, the best one saved and loaded again"""

import itertools

import keras
import numpy as np

keras.utils.set_random_seed(1)
x = np.random.normal(size=(64, 4)).astype("float32")
y = (x[:, :1] * x[:, 1:2] > 0).astype("float32")
best = None
for units, rate in itertools.product([2, 4], [0.1, 0.5]):
    keras.backend.clear_session()
    model = keras.Sequential(
        [keras.layers.Dense(units, activation="tanh"), keras.layers.Dense(1, activation="sigmoid")]
    )
    model.compile(keras.optimizers.SGD(rate), "binary_crossentropy", metrics=["accuracy"])
    history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0, validation_split=0.25)
    loss = history.history["val_loss"][-1]
    print(units, rate, loss)
    if best is None or loss < best:
        best = loss
        model.save("best.keras")
print("best", best, keras.models.load_model("best.keras").evaluate(x[48:], y[48:], verbose=0))
