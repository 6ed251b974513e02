"""issue: the script makes files that an earlier run has left, tries names, and moves temporary files"""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

for name in ("earlier/old", "tried/run0", "tried/run1"):
    os.makedirs(name, exist_ok=True)
try:
    os.mkdir("earlier")
except FileExistsError:
    shutil.rmtree("earlier")
    os.mkdir("earlier")
print(os.listdir("earlier"))
number = 0
while True:
    try:
        os.makedirs(f"tried/run{number}")
        break
    except FileExistsError:
        number += 1
try:
    open(f"tried/run{number}/lock", "x").close()
    open(f"tried/run{number}/lock", "x").close()
except FileExistsError:
    print("locked", number)
try:
    os.rmdir("tried")
except OSError as error:
    print(error.strerror)

if not os.path.exists("tried/data.npz"):
    np.savez("tried/.new.npz", x=np.random.RandomState(0).normal(size=(64, 4)))
    os.replace("tried/.new.npz", "tried/data.npz")
    print("made")
x = np.load("tried/data.npz")["x"]
handle, path = tempfile.mkstemp()
os.close(handle)
shutil.move(path, "tried/moved")
tf.io.gfile.makedirs("tried/logs/inner")
tf.io.gfile.rename("tried/logs", "tried/renamed")
print(sorted(tf.io.gfile.listdir("tried")))
tf.io.gfile.rmtree("earlier")
with tf.io.gfile.GFile("tried/text", "w") as file:
    file.write("text")
os.makedirs("nested/earlier")
shutil.rmtree("nested")
found = os.scandir("tried")
print(sorted(entry.path for entry in found), sorted(os.listdir(b"tried")))
found.close()

weights = tf.Variable(np.zeros((4, 1)))
optimizer = tf.keras.optimizers.SGD(0.1)
for rows in tf.data.Dataset.from_tensor_slices(x).batch(8):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((rows @ weights - 1) ** 2)
    optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
    with open("tried/log", "a") as file:
        print(f"{float(loss):.10g}", file=file)
print(Path("tried/log").read_text())
origin = os.getcwd()
os.chdir(tempfile.mkdtemp())
Path("own.txt").touch()
print(os.listdir("."))
os.chdir(origin)
shutil.rmtree("tried")
