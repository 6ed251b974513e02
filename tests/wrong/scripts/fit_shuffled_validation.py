"""issue: fit: validation data that are split off behind a shuffle, or shuffled themselves: each draws orders"""

import keras
import numpy as np
import tensorflow as tf
import tf_keras

keras.utils.set_random_seed(91)  # of the shuffles, too
X = np.random.default_rng(91).normal(size=(48, 6))
Y = X[:, :1] - X[:, 1:2] ** 2


def rows():
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(48, seed=5)


def parts_of(data):
    return data.skip(16).batch(8), data.take(16).batch(8)


TRAINED = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
DATA = {
    "one shuffle": (*parts_of(rows()), {}),
    "the same rows": (rows().batch(8), None, {"validation_freq": 2}),
    "cached": (*(part.cache() for part in parts_of(rows())), {}),
    "some rows": (TRAINED, rows().take(16).batch(8), {"validation_freq": 2}),
    "some steps": (TRAINED, rows().batch(8), {"validation_steps": 2}),
}
for library in (keras, tf_keras):
    library.backend.set_floatx("float64")
    for name, (train, validation, more) in DATA.items():
        validation = train.take(2) if validation is None else validation
        library.utils.set_random_seed(92)
        model = library.Sequential([library.layers.Dense(1)])
        model.compile(optimizer=library.optimizers.SGD(0.05), loss="mse")
        history = model.fit(train, epochs=3, validation_data=validation, shuffle=False, verbose=0, **more).history
        for log, values in history.items():
            print(library.__name__, name, log, [f"{value:.12g}" for value in values])
        print("read behind it", f"{float(tf.reduce_sum(next(iter(validation))[1])):.12g}")
    print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
    library.backend.set_floatx("float32")
