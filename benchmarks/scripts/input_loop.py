"""The script of benchmarks/input.py --loop: input_fit.py with a training loop of its own."""

import workload  # isort: skip
import keras
import prepared_images
import tensorflow as tf

args = prepared_images.arguments()
clock = workload.Clock(args.rows)
clock.mark("imported")
keras.utils.set_random_seed(0)
data = prepared_images.batches(args)
model = keras.Sequential([keras.Input((28, 28, 1)), *workload.layers("cnn")])
optimizer = keras.optimizers.SGD(0.02, momentum=0.9)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
mean_loss, accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = loss_of(y, logits)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    mean_loss.update_state(loss)
    accuracy.update_state(y, logits)


clock.mark("fit")
for _ in range(args.epochs):
    for metric in (mean_loss, accuracy):
        metric.reset_state()
    for x, y in data:
        step(x, y)
    clock.epoch(float(mean_loss.result()), float(accuracy.result()))
clock.mark("fitted")
clock.report()
