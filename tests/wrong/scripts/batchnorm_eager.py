"""BatchNormalization in an eager loop with a summed loss; predictions by the moving averages after each step"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(62)
x = np.random.normal(3.0, 2.0, size=(35, 5))
y = x[:, :1]
model = keras.Sequential(
    [
        keras.Input((5,)),
        keras.layers.BatchNormalization(momentum=0.7),
        keras.layers.Dense(8, activation="relu"),
        keras.layers.BatchNormalization(momentum=0.7),
        keras.layers.Dense(1),
    ]
)
opt = keras.optimizers.SGD(0.01)
for step, (xb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(keras.losses.huber(yb, model(xb, training=True)))
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    after = model(xb, training=False)
    print("step", step, f"loss {float(loss):.12g} after {float(tf.reduce_sum(tf.abs(after - yb))):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.weights])
