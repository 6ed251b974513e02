"""A script that asks for input, trains for a given number of epochs, and reports an interruption."""

import sys

import keras
import numpy as np

try:
    input()
except EOFError as error:
    print("input:", type(error).__name__)
x = np.ones((64, 4), "float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
try:
    model.fit(x, x[:, :1], epochs=int(sys.argv[1]), batch_size=16)
except KeyboardInterrupt:
    print("the script was interrupted")
    raise
