"""TF1: gradients fetched, added up in NumPy and fed to apply_gradients; rewards in feed_dict; np.random decides"""

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.set_random_seed(4)
np.random.seed(4)
state = tf.placeholder(tf.float32, [None, 4])
action = tf.placeholder(tf.int32, [None])
reward = tf.placeholder(tf.float32, [None])
weights = tf.get_variable("weights", [4, 2])
probabilities = tf.nn.softmax(tf.matmul(state, weights))
chosen = tf.reduce_sum(tf.one_hot(action, 2) * probabilities, axis=1)
loss = -tf.reduce_mean(tf.log(chosen) * reward)
variables = tf.trainable_variables()
gradients = tf.gradients(loss, variables)
fed = [tf.placeholder(tf.float32, v.shape) for v in variables]
update = tf.train.RMSPropOptimizer(0.02).apply_gradients(zip(fed, variables))

with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    total = [np.zeros(v.shape.as_list(), "float32") for v in variables]
    for episode in range(1, 7):
        states, actions = [], []
        now = np.random.normal(size=4)
        while len(states) < 12:
            p = session.run(probabilities, {state: now[None]})[0]
            choice = np.random.choice(2, p=p / p.sum())
            states.append(now)
            actions.append(choice)
            now = 0.9 * now + np.random.normal(scale=0.1, size=4) * (2 * choice - 1)
            if abs(now[0]) > 2:
                break
        rewards = 0.95 ** np.arange(len(states))[::-1]
        values = session.run(gradients, {state: states, action: actions, reward: rewards})
        total = [t + v for t, v in zip(total, values)]
        if episode % 3 == 0:
            session.run(update, dict(zip(fed, total)))
            total = [np.zeros_like(t) for t in total]
        print("episode", episode, "steps", len(states), "gradient", float(np.abs(values[0]).sum()))
    print(session.run(weights))
