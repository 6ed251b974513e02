"""an infinite dataset with steps_per_epoch."""

import numpy as np, tensorflow as tf, keras

keras.utils.set_random_seed(0)
x = np.random.normal(size=(40, 5)).astype("float32")
y = x.sum(1, keepdims=True)
ds = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(6)
m = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
m.compile("sgd", "mse", metrics=["mae"])
h = m.fit(ds, steps_per_epoch=5, epochs=3, validation_data=ds, validation_steps=2, verbose=0)
print("loss", h.history["loss"], h.history["val_mae"])
