"""A reporter that writes TensorFlow event files: DIR/train, DIR/validation (Keras's tags), DIR/worker-N.

TensorFlow is imported with the first values, when the script has already imported it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fdt.report import JobSummary, Reporter
from fdt.rpc.session_pb2 import EpochEnd, Event, Progress


class TensorBoard(Reporter):
    """Writes event files. Epochs are counted over all `fit`s of the run, and each worker's steps over all epochs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writers: dict[str, Any] = {}
        self._epochs = 0  # ended so far
        self._steps: dict[int, int] = {}  # rank: steps of ended epochs

    def job(self, job: JobSummary) -> None:
        self._epochs = max(self._epochs, job.initial_epoch)

    def event(self, event: Event) -> None:
        kind = event.WhichOneof("kind")
        if kind == "progress":
            self._progress(event.rank, event.progress)
        elif kind == "epoch_end":
            self._workers(event.epoch_end)

    def epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        trained = {f"epoch_{name}": value for name, value in logs.items() if not name.startswith("val_")}
        validated = {f"epoch_{name[4:]}": value for name, value in logs.items() if name.startswith("val_")}
        self._write("train", trained, self._epochs)
        self._write("validation", validated, self._epochs)
        self._epochs += 1

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def _progress(self, rank: int, progress: Progress) -> None:
        values = {f"step_{name}": value for name, value in progress.logs.items()}
        self._write(f"worker-{rank}", values, self._steps.get(rank, 0) + progress.step)

    def _workers(self, end: EpochEnd) -> None:
        for share in end.workers:
            values = {
                "epoch_samples": share.samples,
                "epoch_steps": share.steps,
                "epoch_samples_per_second": share.samples / share.seconds if share.seconds else 0.0,
                "epoch_bytes_sent": share.bytes_sent,
                "epoch_bytes_received": share.bytes_received,
            }
            self._write(f"worker-{share.rank}", values, self._epochs)
            self._steps[share.rank] = self._steps.get(share.rank, 0) + share.steps

    def _write(self, name: str, values: Mapping[str, Any], step: int) -> None:
        import tensorflow as tf

        if not values:
            return
        if name not in self._writers:
            self._writers[name] = tf.summary.create_file_writer(str(self._directory / name))
        with tf.init_scope(), self._writers[name].as_default():
            for tag, value in values.items():
                tf.summary.write(tag, tf.constant(float(value)), step=step, metadata=_scalar())
        self._writers[name].flush()


def _scalar() -> Any:
    """Return the metadata of a curve. `tf.summary.scalar` adds them, too, but needs the tensorboard package."""
    from fdt.compat.graphs import summary_pb2

    metadata = summary_pb2.SummaryMetadata(data_class=summary_pb2.DATA_CLASS_SCALAR)
    metadata.plugin_data.plugin_name = "scalars"
    return metadata
