"""placements: compiled train_on_batch with metrics, sample weights and class weights; a last batch of one row"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(43)
x = np.random.normal(size=(33, 6))
y = np.random.randint(0, 3, 33)
weight = np.random.rand(33)
model = keras.Sequential(
    [
        keras.Input((6,)),
        keras.layers.Dense(8, activation="relu", kernel_regularizer="l2"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(3, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], weighted_metrics=["accuracy"])
for step in range(5):
    rows = slice(8 * step, 8 * step + 8)
    logs = model.train_on_batch(x[rows], y[rows], sample_weight=weight[rows], return_dict=True)
    print("step", step, {name: f"{float(value):.12g}" for name, value in logs.items()})
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.weights])
