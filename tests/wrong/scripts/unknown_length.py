"""issue: fit, by every rank: data of unknown length, of which Keras counts an update more in each epoch"""

import warnings

import keras
import numpy as np
import tensorflow as tf

warnings.filterwarnings("ignore", message="Your input ran out of data")

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(81)
x = np.random.normal(size=(26, 4))
y = np.random.normal(size=(26, 1))
data = tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda x, y: x[0] > -1.5).batch(8)


def of_the_batch(y, predicted):
    return tf.reduce_mean((y - predicted) ** 2) / (1.0 + tf.reduce_mean(predicted**2))


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss=of_the_batch, metrics=[of_the_batch])
history = model.fit(data, epochs=2, validation_data=data, shuffle=False, verbose=0)
for name, values in history.history.items():
    print(name, [f"{v:.12g}" for v in values])
print("updates", int(model.optimizer.iterations))
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
