"""issue: the script makes, moves, links and removes files before and between its steps, and looks for them"""

import os
import shutil

import numpy as np
import tensorflow as tf

np.random.seed(0)
if os.path.exists("kept.npz"):
    x, y = np.load("kept.npz").values()
else:
    x = np.random.normal(size=(128, 8))
    y = x.sum(1, keepdims=True) + 0.1 * np.random.normal(size=(128, 1))
    np.savez("kept.npz", x=x, y=y)
number = len(os.listdir("numbered")) if os.path.isdir("numbered") else 0
os.makedirs(f"numbered/{number}")
print(number, os.listdir("numbered"), [entry.name for entry in os.scandir("numbered")])
with open("written.txt", "w") as file:
    file.write("1")
os.rename("written.txt", "moved.txt")
print(os.path.exists("written.txt"), os.path.exists("moved.txt"))
os.remove("moved.txt")
print(os.path.exists("moved.txt"))

weights = tf.Variable(np.zeros((8, 1)))
optimizer = tf.keras.optimizers.SGD(0.05)
os.makedirs("steps", exist_ok=True)
for step in range(30):
    rows = np.random.permutation(128)[:32]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.constant(x[rows]) @ weights - y[rows]) ** 2)
    optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
    if step % 10 == 9:
        print(step, f"{float(loss):.10g}")
        np.save(f"steps/step{step}.npy", weights.numpy())
        if os.path.lexists("steps/last.npy"):
            os.remove("steps/last.npy")
        os.symlink(f"step{step}.npy", "steps/last.npy")
        saved = sorted(name for name in os.listdir("steps") if name.startswith("step"))
        if len(saved) > 2:
            os.remove(f"steps/{saved[0]}")
        print(sorted(os.listdir("steps")), os.readlink("steps/last.npy"), f"{np.load('steps/last.npy').sum():.10g}")
os.rename("steps", "all")
print(os.path.exists("steps"), sorted(os.listdir("all")))
shutil.rmtree("all")
print(os.path.exists("all"))
checkpoints = tf.train.CheckpointManager(tf.train.Checkpoint(weights=weights), "checkpoints", max_to_keep=2)
for _ in range(4):
    checkpoints.save()
print(checkpoints.checkpoints, sorted(os.listdir("checkpoints")))
for name in ("checkpoints", "numbered"):
    shutil.rmtree(name)
