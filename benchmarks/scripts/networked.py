"""The models and data of benchmarks/network.py, which both of its sides train: `make(name, rows)`.

Data are generated, as in workload.py. Both sides use the same optimizer, batch and loss.
"""

import keras
import numpy as np

CLASSES, WORDS, LENGTH = 10, 10_000, 32
BATCHES = {"cnn": 128, "resnet20": 64, "transformer": 64, "mlp10": 64, "mlp50": 64}


def make(name: str, rows: int) -> tuple[keras.Model, np.ndarray, np.ndarray, keras.optimizers.Optimizer]:
    """Return the model, x and y of `rows` rows, and the optimizer."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, rows)
    if name == "transformer":
        x = (rng.integers(0, WORDS // CLASSES, (rows, LENGTH)) * CLASSES + y[:, None]).astype("int32")
        return transformer(), x, y, keras.optimizers.Adam(1e-3)
    shape = {"cnn": (28, 28, 1), "resnet20": (32, 32, 3)}.get(name, (784,))
    patterns = rng.random((CLASSES, *shape), dtype=np.float32)
    x = 0.7 * rng.random((rows, *shape), dtype=np.float32) + 0.3 * patterns[y]
    if name == "cnn":
        return cnn(shape), x, y, keras.optimizers.SGD(0.02, momentum=0.9)
    if name == "resnet20":
        return resnet20(shape), x, y, keras.optimizers.SGD(0.02, momentum=0.9)
    return mlp({"mlp10": (2048, 3), "mlp50": (3900, 4)}[name]), x, y, keras.optimizers.Adam(1e-4)


def cnn(shape: tuple[int, ...]) -> keras.Model:
    layers = keras.layers
    convolved = [
        layer for filters in (32, 64) for layer in (layers.Conv2D(filters, 3, activation="relu"), layers.MaxPooling2D())
    ]
    dense = [layers.Flatten(), layers.Dense(128, activation="relu"), layers.Dense(CLASSES)]
    return keras.Sequential([keras.Input(shape), *convolved, *dense])


def mlp(size: tuple[int, int]) -> keras.Model:
    width, depth = size
    hidden = [keras.layers.Dense(width, activation="relu") for _ in range(depth)]
    return keras.Sequential([keras.Input((784,)), *hidden, keras.layers.Dense(CLASSES)])


def resnet20(shape: tuple[int, ...]) -> keras.Model:
    layers = keras.layers

    def convolved(x, filters, strides=1):
        x = layers.Conv2D(filters, 3, strides, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    inputs = keras.Input(shape)
    x = layers.ReLU()(convolved(inputs, 16))
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(3):
            strides = 2 if stage and not block else 1
            y = convolved(layers.ReLU()(convolved(x, filters, strides)), filters)
            if strides == 2:
                x = layers.Conv2D(filters, 1, 2, use_bias=False)(x)
            x = layers.ReLU()(layers.Add()([x, y]))
    return keras.Model(inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x)))


def transformer(width: int = 256, heads: int = 4) -> keras.Model:
    layers = keras.layers
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, width)(inputs)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(heads, width // heads)(y, y)])
        y = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(width)(y)])
    return keras.Model(inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(x)))
