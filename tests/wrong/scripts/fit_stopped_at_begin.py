"""issue: fit: a callback ends training in on_epoch_begin, where Keras takes one step more"""

import keras
import numpy as np

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(91)
x = np.random.normal(size=(24, 4))
y = np.random.normal(size=(24, 1))


class Limit(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.stop_training = epoch == 1


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05), "mse")
history = model.fit(x, y, batch_size=4, epochs=3, shuffle=False, verbose=0, callbacks=[Limit()])
print("loss", [f"{v:.6g}" for v in history.history["loss"]], int(model.optimizer.iterations))
print("weights", *[f"{float(np.sum(w)):.6g}" for w in model.get_weights()])
