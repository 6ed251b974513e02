"""CIFAR-10 with LeNet-5 (LeCun et al. 1998) in today's dress: ReLU, max pooling, softmax cross-entropy."""

import argparse

import keras

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--train-samples", type=int, default=50_000)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--shuffle", action=argparse.BooleanOptionalAction, default=True)
args = parser.parse_args()

keras.utils.set_random_seed(args.seed)
(x_train, y_train), (x_test, y_test) = keras.datasets.cifar10.load_data()
x_train = x_train[: args.train_samples].astype("float32") / 255.0
y_train = y_train[: args.train_samples, 0]
x_test, y_test = x_test.astype("float32") / 255.0, y_test[:, 0]

inputs = keras.Input((32, 32, 3))
x = keras.layers.Conv2D(6, 5, activation="relu")(inputs)
x = keras.layers.MaxPooling2D()(x)
x = keras.layers.Conv2D(16, 5, activation="relu")(x)
x = keras.layers.MaxPooling2D()(x)
x = keras.layers.Flatten()(x)
x = keras.layers.Dense(120, activation="relu")(x)
x = keras.layers.Dense(84, activation="relu")(x)
model = keras.Model(inputs, keras.layers.Dense(10)(x))

model.compile(
    optimizer=keras.optimizers.Adam(1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(x_train, y_train, batch_size=args.batch_size, epochs=args.epochs, shuffle=args.shuffle)

_, accuracy = model.evaluate(x_test, y_test, verbose=0)
print(f"test accuracy: {accuracy:.4f}")
