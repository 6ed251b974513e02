"""an eager tape loop over a dataset; the last batch is partial"""

import numpy as np, tensorflow as tf, keras

keras.utils.set_random_seed(0)
x = np.random.normal(size=(45, 5)).astype("float32")
y = (x.sum(1, keepdims=True) > 0).astype("float32")
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
m = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
opt = keras.optimizers.Adam(0.01)
loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
mean = keras.metrics.Mean()
acc = keras.metrics.BinaryAccuracy(threshold=0.0)
for epoch in range(2):
    total = 0.0
    for step, (xb, yb) in enumerate(ds):
        with tf.GradientTape() as tape:
            out = m(xb, training=True)
            loss = loss_fn(yb, out)
        g = tape.gradient(loss, m.trainable_weights)
        opt.apply_gradients(zip(g, m.trainable_weights))
        mean.update_state(loss)
        acc.update_state(yb, out)
        total += float(loss)
        if step == 1:
            print("step", step, loss.numpy())
    print("epoch", epoch, total / 6, float(mean.result()), acc.result().numpy())
    mean.reset_state()
    acc.reset_state()
for xb, yb in ds:
    acc.update_state(yb, m(xb))
print("eval", float(acc.result()), [float(np.abs(w).sum()) for w in m.get_weights()])
open("weights.txt", "w").write("done")
