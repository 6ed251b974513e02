"""Feeder thread: draws the batches that only the client can draw and sends them when workers ask for them.

Keras's own epoch loop defines an epoch (workers, queues, on_epoch_end, steps_per_epoch, the warning when data run out).
Its batches go to shared memory instead of a training step.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any

import tensorflow as tf

from client_shim.call import trimmed
from client_shim.resume import randomness
from fdt.blobs import Blobs
from fdt.data.epochs import DrawnEpochs
from fdt.job import FEED_WINDOW, FeedData
from fdt.rpc.session_pb2 import Command, FeedBatch, FeedWanted
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.service.client import Conversation
from fdt.tensors import flatten

Epochs = Callable[[], Generator[tuple[int, Iterator[Any]], None, None]]  # (epoch, its batches), each drawn on demand

STOP_S = 1.0  # longest wait for a batch that is being drawn when the job ends


class Feeder:
    """A thread that sends the batches of one feed, never more than the workers asked for.

    Args:
        name: The feed's name in the job.
        epochs: Yields each epoch's number and its batches.
        talk: The channel to the engine.
        blobs: The shared memory that the batches are written to.
        job: The job's id.
        first: Number of the first epoch to send; batches of earlier epochs are drawn and discarded.
        steps: The steps of each epoch; None: the workers read to its end.
    """

    def __init__(
        self,
        name: str,
        epochs: Epochs,
        talk: Conversation,
        blobs: Blobs,
        job: str,
        first: int = 0,
        steps: DrawnEpochs | None = None,
    ) -> None:
        self._name, self._epochs, self._talk, self._blobs, self._job = name, epochs, talk, blobs, job
        self._first, self._steps = first, steps or DrawnEpochs(FeedData(name, -1))
        self.ran_out = False  # the data, within an epoch of known steps
        self._ended = -1  # the last epoch whose end the client has heard of
        self._over = -1.0  # the last epoch that was drawn to its end; infinite: the thread has ended
        self._allowed: dict[int, int] = {}
        self._changed = threading.Condition()
        self._stopped = False
        self._error: BaseException | None = None
        self._sent: deque[BlobRef] = deque()
        self._generators = randomness.sums() if first else {}  # before earlier epochs are drawn
        self._thread = threading.Thread(target=self._run, name=f"feed {name}", daemon=True)
        self._thread.start()

    def wanted(self, wanted: FeedWanted) -> None:
        """Allow batches of `wanted.epoch` with an index below `wanted.up_to` to be sent."""
        if wanted.name == self._name:
            with self._changed:
                self._allowed[wanted.epoch] = max(self._allowed.get(wanted.epoch, 0), wanted.up_to)
                self._changed.notify_all()

    def generators_used(self) -> list[str]:
        """Wait until the discarded epochs are drawn. Return the global random generators that have changed since."""
        with self._changed:
            self._changed.wait_for(lambda: self._over >= self._first - 1)
        return [name for name, sum_ in randomness.sums().items() if sum_ != self._generators[name]]

    def finish_epoch(self, epoch: int) -> None:
        """Wait until the epoch is drawn to its end, if workers asked for all of it.

        Keras calls `on_epoch_end` of the script's data before that of the callbacks; the model has the epoch's weights.
        """
        with self._changed:
            self._ended = epoch
            self._changed.notify_all()
            steps = self._steps.count(epoch)
            if steps is not None and self._allowed.get(epoch, 0) > steps:
                self._changed.wait_for(lambda: self._over >= epoch)

    def stop(self) -> None:
        """End the thread and drop the last batches it sent.

        Raises the error that the script's own data raised, if there was one.
        """
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join(STOP_S)
        for ref in list(self._sent):
            self._blobs.drop(ref)
        if self._error is not None:
            error, self._error = self._error, None
            raise error from None  # without the engine's error, which followed from this one

    def _run(self) -> None:
        try:
            for epoch, batches in self._epochs():
                if not self._send_epoch(epoch, batches):
                    return
        except BaseException as error:  # noqa: BLE001 - the script's own error; `stop` raises it in the script's thread
            self._error = error
            self._talk.cancel()
        finally:
            self._drawn(math.inf)

    def _send_epoch(self, epoch: int, batches: Iterator[Any]) -> bool:
        if epoch < self._first:
            return all(not self._stopped for _ in batches)
        self._drawn(epoch - 1)  # also where it was discarded
        index, steps = 0, self._steps.count(epoch)
        while self._may_send(epoch, index):
            last = index == steps  # which is known before its end is drawn
            batch = None if last else next(batches, None)
            if batch is None:
                self.ran_out |= self._steps.over(epoch, index)
                self._send(FeedBatch(name=self._name, epoch=epoch, index=index, end=True))
                if last:
                    if not self._may_end(epoch):
                        return False
                    next(batches, None)
                self._drawn(epoch)
                return True
            structure, leaves = flatten(trimmed(tf.nest.map_structure(_array, batch)))
            ref = self._blobs.put_arrays(leaves)
            if not self._remember(ref):
                return False
            self._send(FeedBatch(name=self._name, epoch=epoch, index=index, arrays=ref, structure=structure))
            index += 1
        return False

    def _drawn(self, epoch: float) -> None:
        with self._changed:
            self._over = epoch
            self._changed.notify_all()

    def _may_send(self, epoch: int, index: int) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or index < self._allowed.get(epoch, 0))
            return not self._stopped

    def _may_end(self, epoch: int) -> bool:
        """Wait until the client has the weights of the epoch's end, which `on_epoch_end` of the data may read."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._ended >= epoch)
            return not self._stopped

    def _send(self, batch: FeedBatch) -> None:
        self._talk.send(Command(job=self._job, feed=batch))

    def _remember(self, ref: BlobRef) -> bool:
        """Keep the reference of a batch for `stop`. The engine drops the batches that all ranks have received.

        Returns False if the job had ended while the batch was drawn; the batch is then dropped here.
        """
        with self._changed:
            if self._stopped:
                self._blobs.drop(ref)
                return False
            self._sent.append(ref)
            if len(self._sent) > 4 * FEED_WINDOW:
                self._sent.popleft()
        return True


def _array(leaf: Any) -> Any:
    """Return a leaf as an array, and None for an empty Optional, by which Keras represents a None from a generator."""
    if isinstance(leaf, tf.experimental.Optional):
        return leaf.get_value().numpy() if bool(leaf.has_value()) else None
    if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):  # fdt/data/feed.py reassembles the parts
        return tuple(part.numpy() for part in tf.nest.flatten(leaf, expand_composites=True))
    return None if leaf is None else leaf.numpy()
