"""The unmodified script: a Keras model, `fit`, and a callback that records the ends of epochs."""

import workload  # isort: skip
import keras

args = workload.arguments()
clock = workload.Clock(args.rows)
clock.mark("imported")

CNN = [
    keras.layers.Conv2D(8, 5, activation="relu"),
    keras.layers.MaxPooling2D(),
    keras.layers.Conv2D(16, 5, activation="relu"),
    keras.layers.MaxPooling2D(),
    keras.layers.Flatten(),
    keras.layers.Dense(64, activation="relu"),
    keras.layers.Dense(10),
]
MLP = [
    keras.layers.Flatten(),
    keras.layers.Dense(1024, activation="relu"),
    keras.layers.Dense(1024, activation="relu"),
    keras.layers.Dense(10),
]

keras.utils.set_random_seed(0)
x, y = workload.data(args.rows)
model = keras.Sequential([keras.Input((28, 28, 1)), *(CNN if args.model == "cnn" else MLP)])
model.compile(
    optimizer=keras.optimizers.SGD(args.rate, momentum=args.momentum),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)


class Ends(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs):
        clock.epoch(logs["loss"], logs["accuracy"])


clock.mark("fit")
model.fit(x, y, batch_size=args.batch, epochs=args.epochs, verbose=0, callbacks=[Ends()])
clock.mark("fitted")
clock.report()
