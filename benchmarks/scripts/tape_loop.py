"""The unmodified script: a tape loop as in tutorials, its step a tf.function, over batches of a dataset."""

import workload  # isort: skip
import keras
import pipeline
import prepared_images
import tensorflow as tf

args = workload.arguments()
clock = workload.Clock(args.rows)
clock.mark("imported")
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((28, 28, 1)), *workload.layers(args.model)])
optimizer = keras.optimizers.SGD(args.rate, momentum=args.momentum)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
mean_loss, accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()
data = prepared_images.batches(args) if args.map else pipeline.batches(*workload.data(args.rows), args.batch)


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
