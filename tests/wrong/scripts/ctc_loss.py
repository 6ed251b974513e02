"""CTC loss on padded sequences, lengths per row, greedy decoding printed."""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(3)
x = np.random.randn(18, 7, 5)
labels = np.random.randint(1, 4, (18, 3))
lengths = np.random.randint(1, 4, 18)
cell = keras.layers.Bidirectional(keras.layers.GRU(4, return_sequences=True))
dense = keras.layers.Dense(4)
opt = keras.optimizers.Adam(1e-2)


@tf.function
def step(xb, yb, n):
    with tf.GradientTape() as tape:
        logits = dense(cell(xb))
        time = tf.fill([tf.shape(xb)[0]], 7)
        loss = tf.nn.ctc_loss(yb, tf.cast(logits, tf.float32), n, time, logits_time_major=False, blank_index=0)
        loss = tf.reduce_mean(tf.cast(loss, tf.float64))
    vs = cell.trainable_variables + dense.trainable_variables
    opt.apply_gradients(zip(tape.gradient(loss, vs), vs))
    decoded, _ = tf.nn.ctc_greedy_decoder(tf.transpose(tf.cast(logits, tf.float32), (1, 0, 2)), time, blank_index=0)
    return loss, tf.sparse.to_dense(decoded[0])


for xb, yb, n in tf.data.Dataset.from_tensor_slices((x, labels.astype("int32"), lengths.astype("int32"))).batch(7):
    loss, text = step(xb, yb, n)
    print(f"{float(loss):.5g} {text.numpy()[0].tolist()} {text.shape[0]}")
