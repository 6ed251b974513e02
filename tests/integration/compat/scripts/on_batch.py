"""train_on_batch and test_on_batch, with class weights, in a loop of the script's own"""

import keras
import numpy as np

keras.utils.set_random_seed(1)
x = np.random.normal(size=(45, 5)).astype("float32")
y = (x.sum(1) > 0).astype("int64")
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(6, activation="relu"), keras.layers.Dense(2)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
for epoch in range(2):
    for start in range(0, 45, 8):
        got = model.train_on_batch(x[start : start + 8], y[start : start + 8], class_weight={0: 1.0, 1: 2.0})
    loss, accuracy = model.test_on_batch(x, y)
    print("epoch", epoch, "last batch", got, "all", loss, accuracy)
print("evaluate", model.evaluate(x, y, verbose=0), "predict", model.predict(x[:3], verbose=0).ravel())
