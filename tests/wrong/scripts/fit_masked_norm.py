"""issue: fit: a fused BatchNormalization of tf_keras, which ignores a mask"""

import warnings

import numpy as np
import tf_keras

warnings.filterwarnings("ignore", "Exception encountered|Masking is not supported")
tf_keras.utils.set_random_seed(0)
x = np.random.randint(0, 4, (64, 6, 6))
y = np.random.random((64, 1)).astype("float32")
layers = [tf_keras.layers.BatchNormalization(), tf_keras.layers.ReLU(), tf_keras.layers.Flatten()]
embedding = tf_keras.layers.Embedding(4, 3, mask_zero=True, input_shape=(6, 6))
model = tf_keras.Sequential([embedding, *layers, tf_keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(x, y, batch_size=16, shuffle=False, verbose=0).history
weights = np.concatenate([np.ravel(w) for w in model.get_weights()])
print([f"{loss:.7g}" for loss in history["loss"]], f"{np.linalg.norm(weights):.7g}")
