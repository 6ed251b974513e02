"""A script with tf.experimental.numpy with its type promotion: a network of its own."""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(3)
import tensorflow.experimental.numpy as tnp

tnp.experimental_enable_numpy_behavior()
x, y = tnp.asarray(np.random.randn(28, 4)), tnp.asarray(np.random.randint(0, 3, 28))
w1, w2 = tf.Variable(np.random.randn(4, 6)), tf.Variable(np.random.randn(6, 3))
for epoch in range(2):
    for i in range(0, 28, 9):
        xb, yb = x[i : i + 9], y[i : i + 9]
        with tf.GradientTape() as tape:
            h = tnp.maximum(xb @ w1, 0)
            logits = h @ w2
            logits = logits - tnp.max(logits, axis=1, keepdims=True)
            logp = logits - tnp.log(tnp.sum(tnp.exp(logits), axis=1, keepdims=True))
            loss = -tnp.mean(logp[tnp.arange(len(yb)), yb])
        g1, g2 = tape.gradient(loss, [w1, w2])
        w1.assign_sub(0.1 * g1)
        w2.assign_sub(0.1 * g2)
        acc = tnp.mean(tnp.argmax(logits, axis=1) == yb)
        print(f"{epoch} {float(loss):.12g} {float(acc):.6g} {float(tnp.std(h)):.12g}")
print(f"{float(w1.numpy().sum()):.12g}")
