"""The unmodified script of benchmarks/network.py: `python networked_fit.py MODEL ROWS EPOCHS`."""

import sys

import workload  # isort: skip
import keras
import networked

name, rows, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
clock = workload.Clock(rows)
clock.mark("imported")
model, x, y, optimizer = networked.make(name, rows)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer, loss, metrics=["accuracy"])


class Ends(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs):
        clock.epoch(logs["loss"], logs["accuracy"])


clock.mark("fit")
model.fit(x, y, batch_size=networked.BATCHES[name], epochs=epochs, verbose=0, callbacks=[Ends()])
clock.mark("fitted")
clock.report()
