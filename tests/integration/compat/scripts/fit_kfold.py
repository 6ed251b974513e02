"""k-fold cross-validation: a model a fold, unseeded split of scikit-learn, plot at the end."""

import numpy as np, keras
from sklearn.model_selection import KFold, train_test_split
import matplotlib.pyplot as plt

keras.utils.set_random_seed(0)
x = np.random.normal(size=(60, 5)).astype("float32")
y = x.sum(1, keepdims=True)
tr, te = train_test_split(np.arange(60))
scores = []
for a, b in KFold(3).split(x):
    m = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    m.compile("sgd", "mse")
    h = m.fit(x[a], y[a], epochs=2, batch_size=8, verbose=0, shuffle=False)
    scores.append(m.evaluate(x[b], y[b], verbose=0))
print("scores", scores, "split", sorted(tr)[:3])
plt.plot(h.history["loss"])
plt.show()
plt.savefig("loss.png")
