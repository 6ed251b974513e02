"""The input of a script's own loops: a rank maps only its rows of each batch, if equal results are proven.

`fdt/data/division.py` proves it of the pipeline. `client_shim/replica/iterators.py` proves that Python alone reads the
iterator, and that no `try` of the script catches the error of a row, which is raised on one rank alone. Otherwise each
rank runs the whole pipeline, and `entry.py` cuts its batches.

A batch of a divided pipeline brings the rows that its maps take. A script that reads the whole batch makes its rank map
all of these rows. That needs no other rank, and is possible in any thread.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from client_shim.replica.iterators import catching, opened_at, read_elsewhere
from client_shim.replica.steps import of_script, where
from fdt.compat.tensorflow import dataset_ops
from fdt.data import division
from fdt.errors import WorkerError
from fdt.patches import Patch
from fdt.typing import Batch, Dataset, Tensor
from replica.batches import BatchComparison
from replica.exchange import GroupedExchange
from replica.placement import Shard
from replica.report import DivisionReport
from replica.tensors import is_number, local_array, local_shape_of, mode, place, undivided, unrecorded

ROW_FAILED = (
    "a row of the dataset that {where} reads failed in its map on rank {rank}, and the script went on. The other ranks "
    "did not map this row. Received: {error}; catch the error around the loop, or remove the row before the map"
)
_DIVIDED = "input: each rank maps only its rows ({where})"
_WHOLE = "input: every rank maps all rows, because {reason}"


class LocalInput:
    """The divided pipeline of one dataset.

    Attributes:
        pipeline: Yields (this rank's rows, their share, the source of the global batch).
        where: File and line of the first divided map.
    """

    def __init__(self, found: division.Division, rank: int, size: int) -> None:
        rows = division.width(found.batch_rows, size)
        with undivided(), unrecorded(), tf.device("CPU:0"):
            self.pipeline = division.local(found, rank, size, rows, source=True)
        self.where, self._compute = found.where, division.global_batch(found)
        self._specs = tf.nest.flatten(found.rows.element_spec)
        self._batches = self._read = 0  # batches drawn, and those of them that were read whole

    def placed(self, element: tuple[Batch, Tensor, Tensor], placement: Callable[[int], Shard | None]) -> Batch:
        """Return a batch of which this rank has its rows.

        Args:
            element: Of the pipeline.
            placement: Returns the placement of so many rows; None: the global batch is needed.
        """
        batch, share, source = element
        total, self._batches = int(local_array(share)[1]), self._batches + 1
        whole = functools.cache(lambda: self._whole(source))
        of = placement(total)
        if of is None:
            return tf.nest.pack_sequence_as(batch, whole())

        def placed(index: int, leaf: Tensor) -> Tensor:
            return place(leaf, of, (total, *local_shape_of(leaf)[1:]), source=lambda: whole()[index])

        leaves = [placed(*each) for each in enumerate(tf.nest.flatten(batch))]
        return tf.nest.pack_sequence_as(batch, leaves)

    def rows(self, source: Tensor) -> list[Tensor]:
        """Return the rows of the global batch before their maps."""
        types, shapes = [s.dtype for s in self._specs], [[None, *s.shape] for s in self._specs]
        with tf.init_scope(), undivided(), unrecorded():
            return list(tf.raw_ops.OptionalGetValue(optional=source, output_types=types, output_shapes=shapes))

    @property
    def reads_whole(self) -> bool:
        """Whether the script needed most batches whole, so that the division costs more than it saves."""
        return 2 * self._read > self._batches

    def _whole(self, source: Tensor) -> list[Tensor]:
        self._read += 1
        with tf.init_scope(), undivided(), unrecorded():  # a tensor is also read while a function is traced
            leaves: list[Tensor] = tf.nest.flatten(self._compute(source))
            return leaves


class InputDivision:
    """The division of the pipelines that the script's own loops read.

    Args:
        exchange: The collectives.
        report: Records what is divided.
        batches: Compares batches.
    """

    def __init__(self, exchange: GroupedExchange, report: DivisionReport, batches: BatchComparison) -> None:
        self._exchange, self._report, self._batches = exchange, report, batches

    def patches(self) -> list[Patch]:
        """Return the replacements in TensorFlow."""
        return [Patch(dataset_ops.DatasetV2, "__iter__", self._iter)]

    def _iter(self, original: Any, dataset: Dataset) -> Any:
        if self._exchange.size == 1 or mode.undivided or not tf.executing_eagerly():
            return original(dataset)
        found = self._found(dataset)
        if isinstance(found, str):
            opened = opened_at()
            if found and opened is not None and of_script(opened.f_code.co_filename):  # not Keras
                self._report.note(_WHOLE.format(reason=found))
            return original(dataset)
        self._report.note(_DIVIDED.format(where=found.where))
        iterator = original(found.pipeline)
        iterator._local_input = found
        return iterator

    def _found(self, dataset: Dataset) -> LocalInput | str:
        """Return the divided pipeline, or why there is none; "" where no row is mapped."""
        found = getattr(dataset, "_local_input", None)
        if found is None:
            found = dataset._local_input = division.find(dataset)
        if isinstance(found, str):
            return found
        if reason := _prevents(found):
            return reason
        if isinstance(found, division.Division):
            found = dataset._local_input = LocalInput(found, self._exchange.rank, self._exchange.size)
        return found

    def drawn(self, original: Callable[[Any], Any], iterator: Any, placement: Callable[[int], Shard | None]) -> Batch:
        """Return the next batch of an iterator over a divided pipeline.

        Args:
            original: TensorFlow's own function, which returns the next element.
            iterator: The iterator.
            placement: As of LocalInput.placed.
        """
        try:
            element = original(iterator)
        except tf.errors.OutOfRangeError:
            raise
        except tf.errors.OpError as error:
            reason = str(error).split("\n")[0][:300]
            failed = ROW_FAILED.format(where=where(), rank=self._exchange.rank, error=reason)
            self._exchange.refuse(WorkerError(failed))
            raise
        self._batches.drawn(iterator._dataset, lambda: iterator._local_input.rows(element[2]))
        return iterator._local_input.placed(element, placement)


def _prevents(found: "division.Division | LocalInput") -> str:
    """Return why the script must read the whole pipeline, or ""."""
    if isinstance(found, LocalInput) and found.reads_whole:
        return "the script reads whole batches"
    if isinstance(found, division.Division):
        if found.state:
            return f"`{found.state}` follows the map at {found.where}"
        if not all(is_number(spec.dtype) for spec in tf.nest.flatten(found.spec)):
            return "its batches have tensors without numbers"
    if at := catching():
        return f"the `try` at {at} may catch the error of a row"
    frame = opened_at()
    return "" if frame is None else read_elsewhere(frame)
