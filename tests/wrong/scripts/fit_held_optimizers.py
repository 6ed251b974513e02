"""issue: fit: an optimizer holds one for each layer, and the script lowers their rates between two fits"""

import keras
import numpy as np

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(66)
x = np.random.normal(size=(26, 5))
y = np.random.normal(size=(26, 1))


class Several(keras.optimizers.Optimizer):
    def __init__(self, pairs):
        super().__init__(learning_rate=1.0)
        self.pairs = pairs

    def build(self, variables):
        super().build(variables)
        for optimizer, layer in self.pairs:
            optimizer.build(layer.trainable_variables)

    def apply(self, grads, trainable_variables=None):
        of = {id(v): g for v, g in zip(trainable_variables, grads, strict=True)}
        for optimizer, layer in self.pairs:
            own = layer.trainable_variables
            optimizer.apply([of[id(v)] for v in own], own)
        self._iterations.assign_add(1)


model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
first, second = keras.optimizers.Adam(0.05), keras.optimizers.SGD(0.1, momentum=0.9)
model.compile(Several([(first, model.layers[0]), (second, model.layers[1])]), "mse")
for _ in range(2):
    history = model.fit(x, y, batch_size=12, epochs=2, shuffle=False, verbose=0)
    print("loss", [f"{v:.12g}" for v in history.history["loss"]])
    for each in (first, second):
        print("state", *[f"{float(np.sum(v)):.12g}" for v in each.variables])
        each.learning_rate = 0.1 * float(each.learning_rate)
print("weights", *[f"{float(np.sum(w)):.12g}" for w in model.get_weights()])
