"""TensorFlow's own event files, read back."""

import tensorflow as tf

from fdt.report import JobSummary
from fdt.report.records import TensorBoard
from fdt.rpc.session_pb2 import EpochEnd, Event, Progress, WorkerShare


def read(directory):
    """{(tag, step): value} of the event files in `directory`."""
    found = {}
    for file in directory.glob("events.out.tfevents.*"):
        for record in tf.data.TFRecordDataset(str(file)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                assert value.metadata.plugin_data.plugin_name in ("scalars", "")  # told once a tag
                found[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
    return found


def test_each_worker_has_a_folder_and_epochs_of_all_fits_follow_one_another(tmp_path):
    reporter = TensorBoard(tmp_path)
    for fit in range(2):
        reporter.job(JobSummary("j"))
        reporter.event(Event(rank=1, progress=Progress(epoch=0, step=3, logs={"loss": 0.5})))
        end = EpochEnd(epoch=0, steps=4)
        end.workers.append(WorkerShare(rank=1, steps=4, samples=64, seconds=2.0, bytes_sent=9))
        reporter.event(Event(epoch_end=end))
        reporter.epoch_end(0, {"loss": 0.25 * fit, "val_loss": 0.75})
    reporter.close()
    assert read(tmp_path / "train") == {("epoch_loss", 0): 0.0, ("epoch_loss", 1): 0.25}
    assert read(tmp_path / "validation") == {("epoch_loss", 0): 0.75, ("epoch_loss", 1): 0.75}
    worker = read(tmp_path / "worker-1")
    assert (worker["step_loss", 3], worker["step_loss", 7]) == (0.5, 0.5)
    assert worker["epoch_samples_per_second", 1] == 32.0
