"""TF1: placeholders and feed_dict, Session, minimize; loss, a count, rows and a summary fetched; Saver; a partial batch"""

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.set_random_seed(1)
rng = np.random.RandomState(0)
x = rng.normal(size=(45, 6)).astype("float32")
y = (x.sum(1) > 0).astype("int64")

inputs = tf.placeholder(tf.float32, [None, 6], name="inputs")
labels = tf.placeholder(tf.int64, [None], name="labels")
rate = tf.placeholder(tf.float32, [], name="rate")
w1 = tf.Variable(tf.random_normal([6, 8], stddev=0.3))
b1 = tf.Variable(tf.zeros([8]))
w2 = tf.get_variable("w2", [8, 2], initializer=tf.glorot_uniform_initializer())
hidden = tf.nn.relu(tf.matmul(inputs, w1) + b1)
logits = tf.matmul(hidden, w2)
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
correct = tf.reduce_sum(tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.int32))
accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.float32))
train = tf.train.AdamOptimizer(rate).minimize(loss)
tf.summary.scalar("loss", loss)
summary = tf.summary.merge_all()
saver = tf.train.Saver()

with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    writer = tf.summary.FileWriter("logs", session.graph)
    for epoch in range(4):
        right, total = 0, 0.0
        for start in range(0, len(x), 8):
            feed = {inputs: x[start : start + 8], labels: y[start : start + 8], rate: 0.05 / (epoch + 1)}
            _, batch_loss, batch_right, rows, text = session.run([train, loss, correct, logits, summary], feed)
            writer.add_summary(text, epoch * len(x) + start)
            right, total = right + batch_right, total + batch_loss
            assert len(rows) == len(feed[labels])
        print("epoch", epoch, "loss", total, "right", right, "last row", rows[-1])
        if total < 3.0:
            break
    writer.close()
    print("accuracy", accuracy.eval({inputs: x, labels: y}))
    print("saved to", saver.save(session, "./model/trained", global_step=epoch))

with tf.Session() as session:
    saver.restore(session, tf.train.latest_checkpoint("model"))
    print("restored", session.run(accuracy, {inputs: x, labels: y}))
