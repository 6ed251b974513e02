"""gradients that are added up over three batches and applied in a branch of tf.cond"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(6)
x, y = np.random.normal(size=(24, 6)), np.random.normal(size=(24, 1))


class Accumulating(keras.Sequential):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        for a, g in zip(self.acc, tape.gradient(loss, self.trainable_variables)):
            a.assign_add(g)
        self.step.assign_add(1)
        tf.cond(tf.equal(self.step, 3), self.apply, lambda: None)
        return {"error": loss}

    def apply(self):
        self.optimizer.apply_gradients(zip(self.acc, self.trainable_variables))
        self.step.assign(0)
        for a in self.acc:
            a.assign(tf.zeros_like(a))


model = Accumulating([keras.Input((6,)), keras.layers.Dense(1)])
model.step = tf.Variable(0, trainable=False)
model.acc = [tf.Variable(tf.zeros_like(v), trainable=False) for v in model.trainable_variables]
model.compile(keras.optimizers.SGD(0.1), "mse")
h = model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
print("errors", *[f"{v:.12g}" for v in h.history["error"]], "updates", int(model.optimizer.iterations))
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
