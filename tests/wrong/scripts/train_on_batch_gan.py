"""train_on_batch of a GAN's two compiled models, as in many tutorials, with labels made for half batches"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(121)
real = np.random.normal(1.0, 0.3, size=(40, 3))
generator = keras.Sequential([keras.Input((2,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(3)])
discriminator = keras.Sequential(
    [keras.Input((3,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1, activation="sigmoid")]
)
discriminator.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=["accuracy"])
frozen = keras.models.clone_model(discriminator)
frozen.trainable = False
gan = keras.Sequential([keras.Input((2,)), generator, frozen])
gan.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
for step in range(5):
    rows = real[step * 8 : step * 8 + 5 + step % 2]
    noise = np.random.normal(size=(len(rows), 2))
    d_real = discriminator.train_on_batch(rows, np.ones((len(rows), 1)))
    d_fake = discriminator.train_on_batch(generator.predict_on_batch(noise), np.zeros((len(rows), 1)))
    frozen.set_weights(discriminator.get_weights())
    g_loss = gan.train_on_batch(noise, np.ones((len(noise), 1)))
    print("step", step, "d", [f"{float(v):.12g}" for v in [*d_real, *d_fake]], "g", f"{float(g_loss):.12g}")
variables = generator.trainable_variables + discriminator.trainable_variables
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in variables])
