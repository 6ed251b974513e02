"""Plain Keras until a time limit: Fashion-MNIST, with a network so large that a leak of one copy is visible."""

import sys
import time

import keras
import numpy as np

until = time.monotonic() + float(sys.argv[1]) * 60
most = int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
keras.utils.set_random_seed(0)
(x, y), (x_test, y_test) = keras.datasets.fashion_mnist.load_data()
x, x_test = (a.reshape(-1, 784).astype("float32") / 255 for a in (x, x_test))
layers = [keras.layers.Dense(512, "relu"), keras.layers.Dense(10)]
model = keras.Sequential([keras.Input((784,)), *layers])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.02, momentum=0.9), loss, metrics=["accuracy"])


class Until(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 0:
            print("fit begins", flush=True)

    def on_epoch_end(self, epoch, logs):
        print(f"epoch {epoch + 1} val_accuracy {logs['val_accuracy']:.4f} steps {int(self.model.optimizer.iterations)}")
        sys.stdout.flush()
        if time.monotonic() > until:
            self.model.stop_training = True


data = {"validation_data": (x_test, y_test), "batch_size": 128, "verbose": 0}
history = model.fit(x, y, epochs=most, callbacks=[Until()], **data).history
assert int(model.optimizer.iterations) == len(history["loss"]) * -(-len(x) // 128), "every batch is applied once"
print(f"last {np.mean(history['val_accuracy'][-3:]):.4f} after {len(history['loss'])} epochs", flush=True)
