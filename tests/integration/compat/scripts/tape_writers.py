"""files by TensorFlow's own writers: TFRecord, write_file, Dataset.save, cache(file); read again in the same run"""

import os
import shutil

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
x = np.random.normal(size=(32, 5)).astype("float32")
with tf.io.TFRecordWriter("rows.tfrecord") as writer:
    for row in x:
        feature = tf.train.Feature(float_list=tf.train.FloatList(value=row))
        example = tf.train.Example(features=tf.train.Features(feature={"x": feature}))
        writer.write(example.SerializeToString())
spec = {"x": tf.io.FixedLenFeature([5], tf.float32)}
dataset = tf.data.TFRecordDataset(["rows.tfrecord"]).map(lambda record: tf.io.parse_single_example(record, spec)["x"])
dataset = dataset.cache("rows.cache").batch(8)
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.1)
for epoch in range(2):
    for features in dataset:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(features) - tf.reduce_sum(features, 1, keepdims=True)) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    print("loss", float(loss))
tf.io.write_file("loss.txt", tf.strings.as_string(loss))
print(os.path.exists("loss.txt"), len(tf.io.read_file("loss.txt").numpy()) > 3)
dataset.save("saved")
print(sum(len(batch) for batch in tf.data.Dataset.load("saved")), os.path.isdir("saved"))
shutil.rmtree("saved")
