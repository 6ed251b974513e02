"""issue: fit: a train_step that returns the results of all metrics by name, as Keras's guide does: one is a dict"""

import keras
import numpy as np
import tensorflow as tf

keras.config.set_floatx("float64")
draws = np.random.RandomState(0)
x = draws.randn(70, 4)
y = x @ draws.randn(4, 1) + draws.randn(70, 1)


class Guide(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=predicted)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, predicted)
        results = {metric.name: metric.result() for metric in self.metrics}
        return {**results, "more": {"spread": tf.reduce_mean((predicted - y) ** 4)}}


inputs = keras.Input((4,))
model = Guide(inputs, keras.layers.Dense(1, kernel_initializer="ones")(inputs))
model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae", keras.metrics.RootMeanSquaredError(name="above")])
history = model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0, validation_split=0.1)
for name, values in sorted(history.history.items()):
    print(name, [f"{value:.9g}" for value in values])
keras.config.set_floatx("float32")
