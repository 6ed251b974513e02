"""The hand-written counterpart by an expert in Horovod and TensorFlow.

It has the same Keras model and optimizer. The whole step is one tf.function (gradient, one grouped all-reduce, update,
metrics) that draws its own batch; each rank gathers shuffled batches from its part of the rows. Metrics stay on the
rank and are averaged once an epoch.
"""

import workload  # isort: skip
import horovod.tensorflow as hvd
import keras
import pipeline
import tensorflow as tf

args = workload.arguments()
clock = workload.Clock(args.rows)
clock.mark("imported")
hvd.init()
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((28, 28, 1)), *workload.layers(args.model)])
optimizer = keras.optimizers.SGD(args.rate, momentum=args.momentum)
optimizer.build(model.trainable_variables)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
mean_loss, accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()

x, y = workload.data(args.rows)
x, y = x[hvd.rank() :: hvd.size()], y[hvd.rank() :: hvd.size()]
data = pipeline.batches(x, y, args.batch // hvd.size())
steps = args.rows // args.batch


@tf.function
def step(batches: tf.data.Iterator) -> None:
    x, y = next(batches)
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = loss_of(y, logits)
    gradients = tape.gradient(loss, model.trainable_variables)
    gradients = hvd.grouped_allreduce(gradients, op=hvd.Average)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    mean_loss.update_state(loss)
    accuracy.update_state(y, logits)


for variable in [*model.variables, *optimizer.variables]:
    variable.assign(hvd.broadcast(tf.convert_to_tensor(variable), 0))
clock.mark("fit")
for _ in range(args.epochs):
    for metric in (mean_loss, accuracy):
        metric.reset_state()
    batches = iter(data)
    for _ in range(steps):
        step(batches)
    results = [hvd.allreduce(tf.convert_to_tensor(m.result()), op=hvd.Average) for m in (mean_loss, accuracy)]
    if hvd.rank() == 0:
        clock.epoch(*map(float, results))
clock.mark("fitted")
if hvd.rank() == 0:
    clock.report(workers=hvd.size())
