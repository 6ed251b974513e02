"""issue: fit: a callback changes an attribute and lets Keras trace the step again"""

import keras
import numpy as np

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(95)
x = np.random.normal(size=(24, 4))
y = np.random.normal(size=(24, 1))


class Weighted(keras.Sequential):
    factor = 1.0

    def compute_loss(self, *args, **kwargs):
        return self.factor * super().compute_loss(*args, **kwargs)


class Raise(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.factor = 3.0
            self.model.make_train_function(force=True)


model = Weighted([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05), "mse")
history = model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0, callbacks=[Raise()])
print("loss", [f"{v:.6g}" for v in history.history["loss"]])
print("weights", *[f"{float(np.sum(w)):.6g}" for w in model.get_weights()])
