"""A script that never trains: it imports Keras, makes a model, and predicts."""

import workload  # isort: skip
import keras
import numpy as np

clock = workload.Clock(1)
clock.mark("imported")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
print(model(np.zeros((1, 4), "float32")).shape)
clock.report()
