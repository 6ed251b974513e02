"""The workload that all sides of a comparison share: arguments, data, and the stop-watch. TensorFlow and NumPy only.

Data are generated: images of Fashion-MNIST's shape, a pattern for each class under noise. So the task can be learned
and nothing is downloaded. Scripts import this module first: their later imports are timed.
"""

import argparse
import json
import time

import numpy as np

STARTED = time.time()
CLASSES = 10


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["cnn", "mlp"], default="cnn")
    parser.add_argument("--rows", type=int, default=12_800)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64, help="global batch")
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--map", choices=["divided", "whole", "none"], help="data of prepared_images.py")
    return parser.parse_args()


def data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """x float32 (rows, 28, 28, 1), y int64 (rows,)."""
    rng = np.random.default_rng(0)
    patterns = rng.random((CLASSES, 28, 28, 1), dtype=np.float32)
    y = rng.integers(0, CLASSES, rows)
    x = rng.random((rows, 28, 28, 1), dtype=np.float32)
    x *= 0.7
    x += 0.3 * patterns[y]
    return x, y


def layers(model: str) -> list:
    """Those of keras_fit.py's "cnn" or "mlp"."""
    import keras

    if model == "mlp":
        hidden = [keras.layers.Dense(1024, activation="relu") for _ in range(2)]
        return [keras.layers.Flatten(), *hidden, keras.layers.Dense(CLASSES)]
    convolved = [
        layer
        for filters in (8, 16)
        for layer in (keras.layers.Conv2D(filters, 5, activation="relu"), keras.layers.MaxPooling2D())
    ]
    dense = keras.layers.Dense(64, activation="relu")
    return [*convolved, keras.layers.Flatten(), dense, keras.layers.Dense(CLASSES)]


class Clock:
    """A clock that records the end of each epoch, and prints all on one line for benchmarks/harness.py."""

    def __init__(self, rows: int) -> None:
        self._said: dict[str, object] = {"rows": rows, "started": STARTED, "epoch_ends": []}
        self._ends: list[float] = []

    def mark(self, name: str) -> None:
        self._said[name] = time.time()

    def epoch(self, loss: float, accuracy: float) -> None:
        self._ends.append(time.time())
        print(f"epoch {len(self._ends)}: loss {loss:.4f} accuracy {accuracy:.4f}", flush=True)
        self._said.update(epoch_ends=self._ends, loss=loss, accuracy=accuracy)

    def report(self, **more: object) -> None:
        print("\nbench " + json.dumps({**self._said, **more, "ended": time.time()}), flush=True)
