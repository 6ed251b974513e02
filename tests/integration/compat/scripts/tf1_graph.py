"""TF1 in a graph of its own: initializable iterator, embedding, clipped gradients, an average of the weights, a sum loss"""

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
words = np.arange(92).reshape(23, 4) % 11
targets = (words.sum(1, keepdims=True) % 3).astype("float32")

with tf.Graph().as_default():
    v1.set_random_seed(2)
    dataset = tf.data.Dataset.from_tensor_slices((words, targets)).batch(5)
    iterator = v1.data.make_initializable_iterator(dataset)
    batch, target = iterator.get_next()
    table = v1.get_variable("table", [11, 3], initializer=v1.random_uniform_initializer(-0.5, 0.5))
    w = v1.get_variable("w", [3, 1], initializer=v1.ones_initializer())
    predicted = tf.matmul(tf.reduce_mean(tf.nn.embedding_lookup(table, batch), axis=1), w)
    loss = tf.reduce_sum(tf.square(predicted - target))
    near = tf.reduce_sum(tf.cast(tf.abs(predicted - target) < 1.0, tf.int32))
    step = v1.train.get_or_create_global_step()
    gradients, norm = tf.clip_by_global_norm(tf.gradients(loss, [table, w]), 2.0)
    optimizer = v1.train.AdagradOptimizer(0.1)
    applied = optimizer.apply_gradients(zip(gradients, [table, w]), global_step=step)
    average = tf.train.ExponentialMovingAverage(0.9)
    with tf.control_dependencies([applied]):
        train = average.apply([w])
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for epoch in range(2):
            session.run(iterator.initializer)
            while True:
                try:
                    _, value, size, count = session.run([train, loss, norm, near])
                except tf.errors.OutOfRangeError:
                    break
                print("epoch", epoch, "loss", value, "norm", size, "near", count)
            print("steps", session.run(step), "average", session.run(average.average(w)).ravel())
        session.run(iterator.initializer)
        print("before an update", session.run(loss))
