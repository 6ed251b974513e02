"""a DQN: a replay memory in NumPy arrays, sampled by a seeded generator, a target network, Huber by hand"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(101)
rng = np.random.default_rng(101)
memory = {
    "s": rng.normal(size=(50, 4)),
    "a": rng.integers(0, 2, 50),
    "r": rng.normal(size=50),
    "n": rng.normal(size=(50, 4)),
}
q = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(2)])
target = keras.models.clone_model(q)
target.set_weights(q.get_weights())
opt = keras.optimizers.Adam(0.02)
for step in range(5):
    chosen = rng.choice(50, 9, replace=False)
    s, a, r, n = (memory[k][chosen] for k in "sarn")
    goal = r + 0.9 * np.max(target(n).numpy(), axis=1)
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(q(s) * tf.one_hot(a, 2, dtype=tf.float64), axis=1)
        error = tf.abs(goal - value)
        loss = tf.reduce_sum(tf.where(error < 1.0, 0.5 * error**2, error - 0.5))
    opt.apply_gradients(zip(tape.gradient(loss, q.trainable_variables), q.trainable_variables))
    memory["r"][chosen] += 0.01 * error.numpy()
    if step % 2 == 1:
        target.set_weights(q.get_weights())
    print("step", step, f"loss {float(loss):.12g} best {q(s).numpy().max():.12g} memory {memory['r'].sum():.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in q.trainable_variables])
