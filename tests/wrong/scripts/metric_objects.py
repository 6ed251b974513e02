"""Keras metrics of many kinds in an eager loop: Mean, Accuracy, AUC, Precision, MeanMetricWrapper, their results read in it"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(77)
x = np.random.normal(size=(35, 4))
y = (x[:, 0] + 0.5 * np.random.normal(size=35) > 0).astype("float64")[:, None]
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
opt = keras.optimizers.Adam(0.02)
metrics = [
    keras.metrics.Mean(name="mean"),
    keras.metrics.BinaryAccuracy(name="accuracy"),
    keras.metrics.AUC(name="auc", num_thresholds=20),
    keras.metrics.Precision(name="precision"),
    keras.metrics.RootMeanSquaredError(name="rmse"),
]
for step, (xb, yb) in enumerate(ds):
    with tf.GradientTape() as tape:
        p = tf.sigmoid(model(xb, training=True))
        loss = tf.reduce_mean(keras.losses.binary_crossentropy(yb, p)) * 2 + tf.reduce_sum((p - yb) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    metrics[0].update_state(loss, sample_weight=len(xb))
    for metric in metrics[1:]:
        metric.update_state(yb, p)
    print("step", step, {m.name: f"{float(m.result()):.9g}" for m in metrics})
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
