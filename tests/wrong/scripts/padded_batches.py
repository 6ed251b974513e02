"""padded_batch of sequences of many lengths: the mean over real tokens; how wide a batch is differs"""

import keras
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(109)
sequences = [rng.integers(1, 9, rng.integers(1, 7)) for _ in range(33)]
ds = tf.data.Dataset.from_generator(lambda: iter(sequences), output_signature=tf.TensorSpec([None], tf.int64))
ds = ds.padded_batch(8)
table = tf.Variable(rng.normal(size=(9, 4)) * 0.5)
out = tf.Variable(rng.normal(size=(4, 9)) * 0.5)
opt = keras.optimizers.Adam(0.05)
for step, tokens in enumerate(ds):
    mask = tf.cast(tokens > 0, tf.float64)
    with tf.GradientTape() as tape:
        z = tf.gather(table, tokens)
        context = tf.cumsum(z, axis=1, exclusive=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tokens, tf.tensordot(context, out, 1))
        loss = tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)
    opt.apply_gradients(zip(tape.gradient(loss, [table, out]), [table, out]))
    perplexity = np.exp(loss.numpy())
    print("step", step, "width", tokens.shape[1], "tokens", int(tf.reduce_sum(mask)), f"perplexity {perplexity:.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in [table, out]])
