"""issue: fit: steps that are no multiple of steps_per_execution; Keras 3 takes the next multiple"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(80)
x = np.random.normal(size=(26, 4))
y = np.random.normal(size=(26, 1))
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(5)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse", steps_per_execution=3)
history = model.fit(
    data.repeat(), steps_per_epoch=4, epochs=2, validation_data=data, validation_steps=2, shuffle=False, verbose=0
)
for name, values in history.history.items():
    print(name, [f"{v:.12g}" for v in values])
print("updates", int(model.optimizer.iterations))
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
