"""A script with tf.summary in the loop, keras and tf metrics (AUC, Precision, MeanIoU, MeanTensor) in a function."""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(3)
import glob
import tempfile

x, y = np.random.randn(26, 4), np.random.randint(0, 2, 26)
model = keras.Sequential([keras.layers.Dense(6, "relu"), keras.layers.Dense(1, "sigmoid")])
opt = keras.optimizers.SGD(0.5)
metrics = [
    keras.metrics.AUC(name="auc", num_thresholds=20),
    keras.metrics.Precision(name="p"),
    keras.metrics.Recall(name="r"),
    keras.metrics.BinaryAccuracy(name="acc"),
    keras.metrics.MeanIoU(2, name="iou"),
]
mean = keras.metrics.Mean(name="loss")
f1 = keras.metrics.F1Score(threshold=0.5)
folder = tempfile.mkdtemp()
writer = tf.summary.create_file_writer(folder)


@tf.function
def step(xb, yb):
    with tf.GradientTape() as tape:
        p = model(xb, training=True)
        loss = tf.reduce_mean(keras.losses.binary_crossentropy(yb[:, None], p))
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    mean.update_state(loss, sample_weight=tf.cast(tf.shape(xb)[0], tf.float64))
    for m in metrics:
        m.update_state(yb[:, None], tf.round(p) if m.name == "iou" else p)
    f1.update_state(tf.cast(yb[:, None], tf.float64), p)


for epoch in range(2):
    for i, (xb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)):
        step(xb, yb)
        with writer.as_default(step=epoch * 4 + i):
            tf.summary.scalar("loss", mean.result())
            tf.summary.histogram("x", xb)
    print(
        epoch,
        f"{mean.result():.9g}",
        *(f"{m.name} {float(m.result()):.6g}" for m in metrics),
        f1.result().numpy().round(6),
    )
    for m in [mean, *metrics, f1]:
        m.reset_state()
writer.close()
events = [e for f in glob.glob(folder + "/*") for e in tf.compat.v1.train.summary_iterator(f)]
print(len(glob.glob(folder + "/*")), len(events))
