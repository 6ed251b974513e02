"""The unmodified script of benchmarks/input.py: it decodes, enlarges and crops each image in `map`, and calls `fit`."""

import workload  # isort: skip
import keras
import prepared_images

args = workload.arguments()
clock = workload.Clock(args.rows)
clock.mark("imported")
keras.utils.set_random_seed(0)
data = prepared_images.batches(args)
model = keras.Sequential([keras.Input((28, 28, 1)), *workload.layers("cnn")])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.02, momentum=0.9), loss, metrics=["accuracy"])


class Ends(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        clock.epoch(logs["loss"], logs["accuracy"])


clock.mark("fit")
model.fit(data, epochs=args.epochs, verbose=0, callbacks=[Ends()])
clock.mark("fitted")
clock.report()
