"""a GAN by train_on_batch: the discriminator alone, then both with the discriminator frozen"""

import keras
import numpy as np

keras.utils.set_random_seed(1)
real = np.random.normal(3.0, 1.0, size=(40, 2)).astype("float32")
generator = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(2)])
discriminator = keras.Sequential(
    [keras.Input((2,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1, activation="sigmoid")]
)
discriminator.compile(keras.optimizers.SGD(0.05), "binary_crossentropy", metrics=["accuracy"])
frozen = keras.Sequential([keras.Input((2,)), discriminator])
frozen.trainable = False
both = keras.Sequential([keras.Input((3,)), generator, frozen])
both.compile(keras.optimizers.SGD(0.05), "binary_crossentropy")
for step in range(5):
    rows = np.random.randint(0, 40, 8)
    fakes = generator.predict(np.random.normal(size=(8, 3)), verbose=0)
    discriminator.trainable = True
    on_real = discriminator.train_on_batch(real[rows], np.ones((8, 1)))
    on_fake = discriminator.train_on_batch(fakes, np.zeros((8, 1)))
    loss = both.train_on_batch(np.random.normal(size=(8, 3)), np.ones((8, 1)))
    print("step", step, on_real, on_fake, loss)
