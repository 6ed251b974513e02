"""callbacks: one that calls the model, learning rates, early stopping, checkpoints, a CSV log, a lambda"""

import glob

import keras
import numpy as np

keras.utils.set_random_seed(1)
x = np.random.normal(size=(48, 5)).astype("float32")
y = x.sum(1, keepdims=True)


class Sampler(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("sample", epoch, self.model(x[:1]).numpy().ravel(), logs["loss"])


model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1, momentum=0.5), "mse", metrics=["mae"])
callbacks = [
    Sampler(),
    keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
    keras.callbacks.ReduceLROnPlateau(patience=1),
    keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True),
    keras.callbacks.ModelCheckpoint("best.weights.h5", save_best_only=True, save_weights_only=True),
    keras.callbacks.CSVLogger("log.csv"),
    keras.callbacks.TensorBoard("logs"),
    keras.callbacks.LambdaCallback(on_train_end=lambda logs: print("ended")),
]
history = model.fit(x, y, batch_size=8, epochs=3, validation_split=0.25, shuffle=False, verbose=0, callbacks=callbacks)
print("loss", history.history["loss"], history.history["val_mae"], float(model.optimizer.learning_rate))
print(len(open("log.csv").readlines()), glob.glob("*.h5"))
