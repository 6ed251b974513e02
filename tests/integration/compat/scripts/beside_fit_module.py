import keras


class Experiment:
    def __init__(self, units):
        self.model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units), keras.layers.Dense(1)])

    def run(self, x, y, epochs):
        self.model.compile(optimizer="sgd", loss="mse")
        return self.model.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0)
