"""a PyDataset with workers and on_epoch_end, sample weights third."""

import numpy as np, keras

keras.utils.set_random_seed(0)
x = np.random.normal(size=(40, 5)).astype("float32")
y = x.sum(1, keepdims=True)


class D(keras.utils.PyDataset):
    ends = 0

    def __len__(self):
        return 5

    def __getitem__(self, i):
        return x[i * 8 : i * 8 + 8], y[i * 8 : i * 8 + 8], np.linspace(1, 2, 8, dtype="float32")

    def on_epoch_end(self):
        D.ends += 1


m = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
m.compile("sgd", "mse", weighted_metrics=["mae"])
h = m.fit(D(workers=2, use_multiprocessing=False), epochs=2, verbose=0, shuffle=False)
print("loss", h.history["loss"], h.history["mae"], D.ends)
