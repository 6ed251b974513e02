"""discounted returns by tf.scan over the rows of an episode, as in REINFORCE, then normalized"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(60)
w = tf.Variable(rng.normal(size=(3, 2)) * 0.3)


@tf.function(reduce_retracing=True)
def train_step(states, actions, rewards):
    returns = tf.scan(lambda total, r: r + 0.9 * total, rewards[::-1], initializer=tf.constant(0.0, tf.float64))[::-1]
    advantage = (returns - tf.reduce_mean(returns)) / (tf.math.reduce_std(returns) + 1e-6)
    with tf.GradientTape() as tape:
        logp = tf.nn.log_softmax(states @ w)
        chosen = tf.gather(logp, actions, batch_dims=1)
        loss = -tf.reduce_sum(chosen * advantage)
    w.assign_sub(0.05 * tape.gradient(loss, w))
    return loss, returns[0]


for episode in range(5):
    length = rng.integers(3, 12)
    states, actions = rng.normal(size=(length, 3)), rng.integers(0, 2, length)
    rewards = rng.normal(size=length)
    loss, first = train_step(tf.constant(states), tf.constant(actions), tf.constant(rewards))
    print("episode", episode, "length", length, f"loss {float(loss):.12g} return {float(first):.12g}")
print("weights", f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}")
