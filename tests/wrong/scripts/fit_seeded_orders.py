"""issue: fit: rows in the order in which both Keras shuffle them after a seed, for passes that several epochs share"""

import warnings

import keras
import numpy as np
import tf_keras

draws = np.random.RandomState(0)
x = draws.randn(70, 4)
y = x @ draws.randn(4, 1) + draws.randn(70, 1)
CALLS = [
    {"epochs": 4},
    {"epochs": 3, "steps_per_epoch": 2},
    {"epochs": 3, "initial_epoch": 1, "validation_split": 0.2},
    {"epochs": 3, "steps_per_epoch": 5},
]

for kind, backend in ((keras, keras.config), (tf_keras, tf_keras.backend)):
    backend.set_floatx("float64")
    for seed in (0, 5):
        kind.utils.set_random_seed(seed)
        model = kind.Sequential([kind.Input((4,)), kind.layers.Dense(3, "tanh"), kind.layers.Dense(1)])
        model.compile(kind.optimizers.SGD(0.1), "mse")
        for words in CALLS:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Your input ran out of data")  # in the third epoch of two steps
                history = model.fit(x, y, batch_size=16, verbose=0, **words)
            print({name: [f"{value:.10g}" for value in values] for name, values in history.history.items()})
        print([f"{weight.sum():.10g}" for weight in model.get_weights()])
    backend.set_floatx("float32")
