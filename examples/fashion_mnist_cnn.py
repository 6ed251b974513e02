"""Fashion-MNIST with a small convolutional network: two 5x5 convolutions and a dense layer (57 k weights)."""

import argparse

import keras

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--train-samples", type=int, default=60_000)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--shuffle", action=argparse.BooleanOptionalAction, default=True)
args = parser.parse_args()

keras.utils.set_random_seed(args.seed)
(x_train, y_train), (x_test, y_test) = keras.datasets.fashion_mnist.load_data()
x_train = x_train[: args.train_samples, ..., None].astype("float32") / 255.0
y_train = y_train[: args.train_samples]
x_test = x_test[..., None].astype("float32") / 255.0

model = keras.Sequential(
    [
        keras.Input((28, 28, 1)),
        keras.layers.Conv2D(8, 5, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(16, 5, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer=keras.optimizers.SGD(0.02, momentum=0.9),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(x_train, y_train, batch_size=args.batch_size, epochs=args.epochs, shuffle=args.shuffle)

_, accuracy = model.evaluate(x_test, y_test, verbose=0)
print(f"test accuracy: {accuracy:.4f}")
