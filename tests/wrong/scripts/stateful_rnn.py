"""truncated backpropagation: the state of each row's sequence is carried from step to step"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(112)
text = rng.integers(0, 7, size=(6, 26))
table, recurrent, out = (tf.Variable(rng.normal(size=s) * 0.4) for s in [(7, 4), (4, 4), (4, 7)])
variables = [table, recurrent, out]


@tf.function
def train_step(tokens, targets, state):
    with tf.GradientTape() as tape:
        loss = tf.constant(0.0, tf.float64)
        for t in range(tokens.shape[1]):
            state = tf.tanh(tf.gather(table, tokens[:, t]) + state @ recurrent)
            loss += tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(targets[:, t], state @ out))
    grads, norm = tf.clip_by_global_norm(tape.gradient(loss, variables), 5.0)
    for v, g in zip(variables, grads):
        v.assign_sub(0.05 * tf.convert_to_tensor(g))
    return loss, norm, state


state = tf.zeros([6, 4], tf.float64)
for step in range(5):
    a = 5 * step
    loss, norm, state = train_step(tf.constant(text[:, a : a + 5]), tf.constant(text[:, a + 1 : a + 6]), state)
    print("step", step, f"loss {float(loss):.12g} norm {float(norm):.12g} state {float(tf.norm(state)):.12g}")
print("weights", *[f"{float(tf.reduce_sum(v)):.12g} {float(tf.norm(v)):.12g}" for v in variables])
