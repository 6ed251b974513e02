"""TF1: MonitoredTrainingSession with hooks, checkpoints, summaries and a decayed rate; one-shot iterator; resumed"""

import numpy as np
import tensorflow as tf

tf.compat.v1.disable_eager_execution()
x = np.linspace(-1, 1, 50, dtype="float32").reshape(25, 2)
y = x[:, :1] * 2 - x[:, 1:]


def train(last_step):
    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(3)
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat(4).batch(7)
        inputs, targets = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
        step = tf.compat.v1.train.get_or_create_global_step()
        w = tf.compat.v1.get_variable("w", [2, 1], initializer=tf.compat.v1.truncated_normal_initializer(stddev=0.1))
        loss = tf.reduce_mean(tf.square(tf.matmul(inputs, w) - targets))
        tf.compat.v1.summary.scalar("loss", loss)
        rate = tf.compat.v1.train.exponential_decay(0.2, step, 5, 0.9, staircase=True)
        optimizer = tf.compat.v1.train.MomentumOptimizer(rate, 0.9)
        pairs = [(tf.clip_by_norm(g, 0.5), v) for g, v in optimizer.compute_gradients(loss)]
        train_op = optimizer.apply_gradients(pairs, global_step=step)
        with tf.control_dependencies([train_op]):  # beside it, the step is read before or after: in no order
            step_after = step.read_value()
        hooks = [
            tf.compat.v1.train.StopAtStepHook(last_step=last_step),
            tf.compat.v1.train.NanTensorHook(loss),
            tf.compat.v1.train.LoggingTensorHook({"loss": loss}, every_n_iter=3),
        ]
        with tf.compat.v1.train.MonitoredTrainingSession(
            checkpoint_dir="run", hooks=hooks, save_checkpoint_steps=5, save_summaries_steps=2
        ) as session:
            while not session.should_stop():
                _, value, at = session.run([train_op, loss, step_after])
                print("loss", value, "at", at)


train(6)
train(30)
print(sorted(t for t, _ in tf.train.list_variables("run")))
for name, _ in tf.train.list_variables("run"):
    print(name, tf.train.load_variable("run", name).ravel())
