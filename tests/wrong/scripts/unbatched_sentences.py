"""issue: a dataset that was never batched: an element is one sentence, its first axis the words"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(24)
words = np.random.randint(0, 20, size=(5, 9))
sentences = tf.data.Dataset.from_tensor_slices(words)
embedding = tf.Variable(np.random.normal(size=(20, 4)) * 0.5)
recurrent = tf.Variable(np.random.normal(size=(4, 4)) * 0.3)
opt = keras.optimizers.Adam(0.05)
for step, sentence in enumerate(sentences):
    with tf.GradientTape() as tape:
        state = tf.zeros([1, 4], tf.float64)
        losses = []
        for i in range(len(sentence) - 1):
            state = tf.tanh(state @ recurrent + tf.gather(embedding, sentence[i : i + 1]))
            logits = state @ tf.transpose(embedding)
            losses.append(tf.nn.sparse_softmax_cross_entropy_with_logits(sentence[i + 1 : i + 2], logits))
        loss = tf.add_n(losses) / len(losses)
        loss = tf.reduce_sum(loss)
    opt.apply_gradients(zip(tape.gradient(loss, [embedding, recurrent]), [embedding, recurrent]))
    print("step", step, "words", len(sentence), f"loss {float(loss):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in [embedding, recurrent]])
