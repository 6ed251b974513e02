"""a notebook exported to a script: cell marks, plt.show() and savefig, a bar printed by Keras"""

# In[1]:
import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

if tf.config.list_physical_devices("GPU"):
    print("training on a GPU")

# In[2]:
keras.utils.set_random_seed(1)
x = np.random.normal(size=(40, 5)).astype("float32")
model = keras.models.Sequential()
model.add(keras.layers.Dense(4, activation="relu", input_shape=(5,)))
model.add(keras.layers.Dense(1))
model.compile(optimizer="adam", loss="mse")

# In[3]:
history = model.fit(x, x.sum(1), epochs=3, batch_size=8, shuffle=False, validation_split=0.2)
plt.plot(history.history["loss"])
plt.plot(history.history["val_loss"])
plt.savefig("loss.png")
plt.show()

# In[4]:
print("end", history.history["val_loss"])
