"""np.asarray, np.mean, np.array and .numpy() of what an eager step computes"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(78)
x = np.random.normal(size=(35, 4))
y = np.random.randint(0, 3, 35)
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(3)])
opt = keras.optimizers.SGD(0.2)
everything = []
for step, (xb, yb) in enumerate(ds):
    with tf.GradientTape() as tape:
        logits = model(xb)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(yb, logits)
        loss = tf.reduce_mean(losses)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    predicted = np.asarray(logits).argmax(1)
    accuracy = np.mean(predicted == np.array(yb))
    everything.extend(predicted.tolist())
    print("step", step, f"loss {np.mean(losses):.12g} max {np.max(losses):.12g} accuracy {accuracy:.6f}")
    print("  first", losses.numpy()[0].round(9), "last", losses.numpy()[-1].round(9), "rows", len(predicted))
print("predicted", everything)
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
