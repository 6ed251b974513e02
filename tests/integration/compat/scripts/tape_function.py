"""a tf.function step over a dataset, train_on_batch after"""

import numpy as np, tensorflow as tf, keras

keras.utils.set_random_seed(0)
x = np.random.normal(size=(45, 5)).astype("float32")
y = (x.sum(1, keepdims=True) > 0).astype("float32")
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
m = keras.Sequential(
    [keras.Input((5,)), keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
)
opt = keras.optimizers.SGD(0.1, momentum=0.9)
loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
acc = keras.metrics.BinaryAccuracy(threshold=0.0)


@tf.function
def train_step(xb, yb):
    with tf.GradientTape() as tape:
        out = m(xb, training=True)
        loss = loss_fn(yb, out)
    g = tape.gradient(loss, m.trainable_weights)
    opt.apply_gradients(zip(g, m.trainable_weights))
    acc.update_state(yb, out)
    return loss


for epoch in range(2):
    losses = []
    for xb, yb in ds:
        losses.append(train_step(xb, yb))
    print("epoch", epoch, float(np.mean(losses)), float(acc.result()))
    acc.reset_state()
m.compile("sgd", "mse", metrics=["mae"])
for i in range(3):
    print("batch", m.train_on_batch(x[i * 8 : i * 8 + 8], y[i * 8 : i * 8 + 8]))
print("eval", m.evaluate(x, y, verbose=0))
print("w", [float(np.abs(w).sum()) for w in m.get_weights()])
