"""The hand-written Horovod script of benchmarks/network.py: `python networked_horovod.py MODEL ROWS EPOCHS`.

As in Horovod's own examples there is one all-reduce for each gradient (DistributedGradientTape does the same), which
Horovod starts as soon as the gradient is there. The step is one tf.function that draws its own batch.
"""

import sys

import workload  # isort: skip
import horovod.tensorflow as hvd
import keras
import networked
import pipeline
import tensorflow as tf

name, rows, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
clock = workload.Clock(rows)
clock.mark("imported")
hvd.init()
model, x, y, optimizer = networked.make(name, rows)
optimizer.build(model.trainable_variables)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
mean_loss, accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()
batch = networked.BATCHES[name]
data = pipeline.batches(x[hvd.rank() :: hvd.size()], y[hvd.rank() :: hvd.size()], batch // hvd.size())


@tf.function
def step(batches: tf.data.Iterator) -> None:
    x, y = next(batches)
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = loss_of(y, logits)
    gradients = tape.gradient(loss, model.trainable_variables)
    gradients = [hvd.allreduce(g, op=hvd.Average, name=f"gradient.{i}") for i, g in enumerate(gradients)]
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    mean_loss.update_state(loss)
    accuracy.update_state(y, logits)


clock.mark("fit")  # state goes to the ranks within `fit` of hfdt run, too
for variable in [*model.variables, *optimizer.variables]:
    variable.assign(hvd.broadcast(tf.convert_to_tensor(variable), 0))
for _ in range(epochs):
    for metric in (mean_loss, accuracy):
        metric.reset_state()
    batches = iter(data)
    for _ in range(rows // batch):
        step(batches)
    results = [hvd.allreduce(tf.convert_to_tensor(m.result()), op=hvd.Average) for m in (mean_loss, accuracy)]
    if hvd.rank() == 0:
        clock.epoch(*map(float, results))
clock.mark("fitted")
if hvd.rank() == 0:
    clock.report(workers=hvd.size())
