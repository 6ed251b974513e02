"""Cases for tf_keras. A case returns a compiled model, features, labels and further arguments of `fit`."""

import tf_keras
from cases import same_numbers
from tf_keras import layers

script = same_numbers()
x, y = script.FEATURES, script.LABELS


def classifier(*hidden, shape, reduction="sum_over_batch_size", **compiled):
    tf_keras.utils.set_random_seed(1)
    model = tf_keras.Sequential([tf_keras.Input(shape), *hidden, layers.Dense(2)])
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    model.compile(loss=loss, metrics=["accuracy"], **compiled)
    return model


def old_dense():
    average = {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 5}
    optimizer = tf_keras.optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.5, **average)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return classifier(layers.Dense(16, "relu", kernel_regularizer="l2"), shape=(12,), optimizer=optimizer), x, y, {}


def old_batch_norm():
    hidden = [
        layers.Conv2D(4, 3, use_bias=False),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.Flatten(),
        layers.BatchNormalization(),
    ]
    return classifier(*hidden, shape=(8, 8, 1), optimizer="adam"), script.IMAGES, y, {}


def old_summed():
    return (
        classifier(
            layers.Dense(16, "relu"), shape=(12,), reduction="sum", optimizer=tf_keras.optimizers.SGD(0.001, 0.9)
        ),
        x,
        y,
        {},
    )


def old_masked():
    tf_keras.utils.set_random_seed(1)
    model = tf_keras.Sequential(
        [layers.Embedding(20, 6, mask_zero=True), layers.SimpleRNN(7, return_sequences=True), layers.Dense(3)]
    )
    rate = tf_keras.optimizers.schedules.ExponentialDecay(0.005, 2, 0.9)
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf_keras.optimizers.RMSprop(rate, momentum=0.5, clipnorm=0.5), loss, weighted_metrics=["accuracy"])
    return model, script.TOKENS, script.TAGS, {}


CASES = {case.__name__: case for case in [old_dense, old_batch_norm, old_summed, old_masked]}
