"""a gradient reversal layer (tf.custom_gradient) between features and a domain classifier, eager"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(57)
x = np.random.normal(size=(35, 5))
y, domain = np.random.randint(0, 2, (35, 1)).astype("float64"), np.random.randint(0, 2, (35, 1)).astype("float64")
ds = tf.data.Dataset.from_tensor_slices((x, y, domain)).batch(8)


@tf.custom_gradient
def reverse(z):
    return z, lambda upstream: -0.5 * upstream


inputs = keras.Input((5,))
features = keras.layers.Dense(6, activation="tanh")
label_head, domain_head = keras.layers.Dense(1), keras.layers.Dense(1)
for layer, size in [(features, 5), (label_head, 6), (domain_head, 6)]:
    layer.build((None, size))
variables = [v for layer in (features, label_head, domain_head) for v in layer.trainable_variables]
opt = keras.optimizers.SGD(0.2)
for step, (xb, yb, db) in enumerate(ds):
    with tf.GradientTape() as tape:
        z = features(xb)
        label_loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(yb, label_head(z)))
        domain_loss = tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(db, domain_head(reverse(z))))
        loss = label_loss + domain_loss / len(xb)
    opt.apply_gradients(zip(tape.gradient(loss, variables), variables))
    print("step", step, f"labels {float(label_loss):.12g} domains {float(domain_loss):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in variables])
