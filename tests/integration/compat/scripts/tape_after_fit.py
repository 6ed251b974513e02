"""fit, then fine-tuning by a tape; the frozen base first; callbacks and history of fit in between"""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
x = np.random.normal(size=(40, 5)).astype("float32")
y = x.sum(1, keepdims=True)
base = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, activation="relu")])
model = keras.Sequential([base, keras.layers.Dense(1)])
base.trainable = False
model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
stop = keras.callbacks.EarlyStopping("loss", patience=5)
history = model.fit(x, y, batch_size=8, epochs=2, validation_data=(x, y), shuffle=False, verbose=0, callbacks=[stop])
print("fit", {name: [round(v, 4) for v in values] for name, values in history.history.items()})
base.trainable = True
optimizer = keras.optimizers.SGD(0.01)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
for features, labels in dataset.take(4):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(features, training=True) - labels) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    print("tape", float(loss))
print("evaluated", [round(v, 4) for v in model.evaluate(x, y, verbose=0)])
