"""issue: fit: a BackupAndRestore begins at a later epoch, whose data are those of a first pass"""

import tempfile

import keras
import numpy as np
import tensorflow as tf
import tf_keras

keras.backend.set_floatx("float64")
tf_keras.backend.set_floatx("float64")
keras.utils.set_random_seed(90)
x = np.random.normal(size=(24, 4))
y = np.random.normal(size=(24, 1))


def batches():
    while True:
        for low in range(0, 24, 4):
            yield x[low : low + 4], y[low : low + 4]


def shuffled():
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(24, seed=3).batch(4)


def trained(library, name, data, **options):
    class Interrupted(library.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise RuntimeError("interrupted")

    model = library.Sequential([library.layers.Input((4,)), library.layers.Dense(1, kernel_initializer="ones")])
    model.compile(library.optimizers.SGD(0.05), "mse")
    folder = tempfile.mkdtemp()
    for callbacks in ([Interrupted()], []):
        callbacks = [library.callbacks.BackupAndRestore(folder), *callbacks]
        try:
            history = model.fit(data(), epochs=4, verbose=0, shuffle=False, callbacks=callbacks, **options)
        except RuntimeError as error:
            print(error)
    print(library.__name__, name, history.epoch, [f"{v:.6g}" for v in history.history["loss"]])
    print("weights", *[f"{float(np.sum(w)):.6g}" for w in model.get_weights()])


for library in (keras, tf_keras):
    trained(library, "generator", batches, steps_per_epoch=4)
    trained(library, "shuffled", shuffled)
tf_keras.backend.set_floatx("float32")
