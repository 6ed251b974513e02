"""TF1: a GAN, two optimizers with var_lists in one run and in two; noise is fed"""

import numpy as np
import tensorflow.compat.v1 as tf

np.random.seed(1)
real = np.random.normal(3.0, 1.0, size=(48, 2)).astype("float32")


def dense(x, name, units):
    w = tf.get_variable(name + "_w", [x.shape[1], units], initializer=tf.random_normal_initializer(stddev=0.4))
    return tf.matmul(x, w) + tf.get_variable(name + "_b", [units], initializer=tf.zeros_initializer())


def generator(z):
    with tf.variable_scope("generator"):
        return dense(tf.nn.relu(dense(z, "one", 5)), "two", 2)


def discriminator(x):
    with tf.variable_scope("discriminator", reuse=tf.AUTO_REUSE):
        return dense(tf.nn.relu(dense(x, "one", 5)), "two", 1)


with tf.Graph().as_default():
    tf.set_random_seed(1)
    z = tf.placeholder(tf.float32, [None, 3])
    images = tf.placeholder(tf.float32, [None, 2])
    fakes = generator(z)
    on_real, on_fake = discriminator(images), discriminator(fakes)
    entropy = tf.nn.sigmoid_cross_entropy_with_logits
    d_loss = tf.reduce_mean(entropy(labels=tf.ones_like(on_real), logits=on_real)) + tf.reduce_mean(
        entropy(labels=tf.zeros_like(on_fake), logits=on_fake)
    )
    g_loss = tf.reduce_mean(entropy(labels=tf.ones_like(on_fake), logits=on_fake))
    g_variables = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope="generator")
    d_variables = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope="discriminator")
    g_train = tf.train.AdamOptimizer(0.01, beta1=0.5).minimize(g_loss, var_list=g_variables)
    d_train = tf.train.GradientDescentOptimizer(0.05).minimize(d_loss, var_list=d_variables)

    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for start in range(0, len(real), 12):
            batch = real[start : start + 12]
            noise = np.random.uniform(-1, 1, size=(len(batch), 3))
            _, d = session.run([d_train, d_loss], {images: batch, z: noise})
            _, g = session.run([g_train, g_loss], {z: noise})
            print("apart", d, g)
        for start in range(0, len(real), 16):
            batch = real[start : start + 16]
            noise = np.random.uniform(-1, 1, size=(len(batch), 3))
            _, _, d, g = session.run([d_train, g_train, d_loss, g_loss], {images: batch, z: noise})
            print("at once", np.isfinite(d), np.isfinite(g))
        print(session.run(fakes, {z: np.ones((2, 3))}).shape)
