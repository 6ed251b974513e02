"""A subclassed model with its own layer, loss, metric, schedule and `train_step`, on scikit-learn's digits."""

import argparse

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()


class Scale(keras.layers.Layer):
    """One learned factor per feature."""

    def build(self, shape):
        self.factor = self.add_weight(shape=(shape[-1],), initializer="ones", name="factor")

    def call(self, inputs):
        return inputs * self.factor


class ConfidencePenalty(keras.losses.Loss):
    """Cross-entropy less a little entropy (Pereyra et al. 2017)."""

    def __init__(self, beta=0.1, **options):
        super().__init__(**options)
        self.beta = beta

    def call(self, y_true, y_pred):
        log_p = tf.nn.log_softmax(y_pred)
        entropy = -tf.reduce_sum(tf.exp(log_p) * log_p, axis=-1)
        return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True) - self.beta * entropy

    def get_config(self):
        return {**super().get_config(), "beta": self.beta}


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, peak, steps):
        self.peak, self.steps = peak, steps

    def __call__(self, step):
        return self.peak * tf.minimum(1.0, (tf.cast(step, tf.float32) + 1.0) / self.steps)

    def get_config(self):
        return {"peak": self.peak, "steps": self.steps}


class Network(keras.Model):
    """Reports the gradient's norm beside the metrics it was compiled with."""

    def __init__(self, units, **options):
        super().__init__(**options)
        self.units = units
        self.scale = Scale()
        self.hidden = keras.layers.Dense(units, activation="relu")
        self.head = keras.layers.Dense(10)
        self.norm = keras.metrics.Mean(name="gradient_norm")

    def call(self, inputs):
        return self.head(self.hidden(self.scale(inputs)))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            elif metric is self.norm:
                metric.update_state(tf.linalg.global_norm(gradients))
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}

    def get_config(self):
        return {**super().get_config(), "units": self.units}


keras.utils.set_random_seed(args.seed)
x, y = load_digits(return_X_y=True)
x = (x / 16.0).astype("float32")

model = Network(64)
model.compile(optimizer=keras.optimizers.Adam(WarmUp(3e-3, 50)), loss=ConfidencePenalty(), metrics=["accuracy"])
model.fit(x[:1500], y[:1500], batch_size=50, epochs=args.epochs, verbose=2)

results = model.evaluate(x[1500:], y[1500:], verbose=0, return_dict=True)
print(f"test accuracy: {results['accuracy']:.4f}")
