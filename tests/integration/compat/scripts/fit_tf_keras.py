"""tf_keras (Keras 2), as TF_USE_LEGACY_KERAS=1 has it: fit with a Sequence, sample weights, a legacy optimizer"""

import numpy as np
import tf_keras as keras

keras.utils.set_random_seed(1)
x = np.random.normal(size=(40, 5)).astype("float32")


class Rows(keras.utils.Sequence):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        part = x[8 * index : 8 * index + 8]
        return part, part.sum(1, keepdims=True), np.linspace(1, 2, 8)


model = keras.Sequential([keras.layers.Dense(3, activation="tanh", input_shape=(5,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.legacy.SGD(0.1), loss="mse", metrics=["mae"])
history = model.fit(Rows(), epochs=2, shuffle=False, verbose=0)
print("loss", history.history["loss"], history.history["mae"])
model.save("model.h5")
print(keras.models.load_model("model.h5").predict(x[:2], verbose=0).ravel())
