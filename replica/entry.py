"""The entry of rows into a script: elements of datasets, arguments of functions. Dimension 0 is divided.

What is divided affects speed only, never numbers: a divided tensor keeps its placement and its global value.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from client_shim.replica.steps import where
from fdt.compat.tensorflow import concrete_function, control_flow, dataset_ops, iterator_ops, record
from fdt.patches import Patch, entry
from fdt.typing import Tensor
from replica.batches import BatchComparison
from replica.convert import Converter
from replica.input import InputDivision
from replica.placement import Shard, divided
from replica.tensors import EagerTensor, is_number, is_placed, local_shape_of, mode

_BATCHES = "batches of a dataset"
_PRODUCT = "rows of a matrix product"
_OF_A_BATCH = 8  # gradients, such as a GAN's; after more of them, no batch enters any more


class RowEntry:
    """The division of tensors that enter the script.

    Args:
        converter: Changes placements.
        division: Divides the pipelines of datasets.
        batches: Compares batches.

    Attributes:
        rows: This rank's rows and all rows of the last divided tensor; zeros before.
        entered: The number of divided tensors so far.
        first: Where the first one was divided: file and line, a description, and its rows.
    """

    def __init__(self, converter: Converter, division: InputDivision, batches: BatchComparison) -> None:
        self._converter, self._division, self.batches = converter, division, batches
        self.rank, self.size = converter.rank, converter.size
        self.rows, self.entered = (0, 0), 0
        self.first: tuple[str, str, int] | None = None
        self._gradients, self._of_products = 0, False  # since a batch has entered; whether the last one was a product

    def patches(self) -> list[Patch]:
        """Return the replacements in TensorFlow."""
        return [
            Patch(iterator_ops.OwnedIterator, "_next_internal", self._next),
            Patch(concrete_function.ConcreteFunction, "_call_flat", self._call_flat),
        ]

    def cut(self, tensor: Any, what: str) -> Any:
        """Place a tensor, or a ragged one's values; return the value itself where there are no rows to divide."""
        if isinstance(tensor, tf.RaggedTensor):
            return tensor.with_flat_values(self.cut(tensor.flat_values, what))
        if not self._has_rows(tensor):
            return tensor
        shape = local_shape_of(tensor)
        if len(shape) > 1 or not self.rows[1]:
            self.note(shape[0], what)
        self.batches.add(tensor)
        return self._converter.cut(tensor, _by_rows(shape[0], self.size))

    def note(self, rows: int, what: str) -> None:
        """Record that `rows` rows are divided."""
        self.rows, self.entered = (_by_rows(rows, self.size).sizes[self.rank], rows), self.entered + 1
        self._gradients, self._of_products = 0, what == _PRODUCT
        if self.first is None:
            self.first = where(), what, rows

    def note_product(self, rows: int) -> None:
        """Record the rows of an eager matrix product, which are samples where no batch enters otherwise."""
        if self.first is None or self._gradients > _OF_A_BATCH or self._of_products:
            self.note(rows, _PRODUCT)

    def gradient(self) -> None:
        """Count a gradient, before it is computed."""
        self._gradients += 1

    def cut_all(self, values: Any, what: str) -> Any:
        """Divide every tensor of a structure."""
        if type(values) is tuple:  # the fast path of most batches
            return tuple(self.cut_all(v, what) for v in values)
        if type(values) is EagerTensor:
            return self.cut(values, what)
        return tf.nest.map_structure(lambda v: self.cut(v, what), values)

    def _has_rows(self, tensor: Any) -> bool:
        if type(tensor) is not EagerTensor or tensor._placement is not None or self.size == 1 or mode.undivided:
            return False
        shape = local_shape_of(tensor)
        return bool(shape and shape[0] >= max(2, self.size) and is_number(tensor.dtype))

    @contextlib.contextmanager
    def loops(self) -> Iterator[None]:
        """Trace loops over datasets in a tf.function as loops over iterators, which this package can run.

        TensorFlow's own form is a single operation of tf.data that contains the loop's body.
        """
        with entry(control_flow.for_loop_registry._registry, dataset_ops.DatasetV2, _over_iterator):
            yield

    def _next(self, original: Any, iterator: Any) -> Any:
        if hasattr(iterator, "_local_input"):
            return self._division.drawn(original, iterator, self._local_rows)
        element = original(iterator)
        if not tf.executing_eagerly():
            return element
        self.batches.drawn(getattr(iterator, "_dataset", None))
        return self.cut_element(element)

    def cut_element(self, element: Any) -> Any:
        """Divide every tensor of an element of a dataset. Its samples are the most rows of one."""
        before, element = self.entered, self.cut_all(element, _BATCHES)
        if self.entered == before + 1:
            return element
        tensors = tf.nest.flatten(element, expand_composites=True)
        divided = [t.shape[0] for t in tensors if is_placed(t)]
        if self.entered == before and len(divided) == len(tensors) > 1 == len(set(divided)):  # indices and labels
            self.note(divided[0], _BATCHES)
        elif self.entered > before + 1:  # such as labelled and unlabelled rows
            self.rows = _by_rows(max(divided), self.size).sizes[self.rank], max(divided)
        return element

    def _local_rows(self, rows: int) -> Shard | None:
        """Return the placement of a batch whose rows the pipeline has divided; None: it is read whole."""
        if mode.undivided or rows < max(2, self.size):
            return None
        self.note(rows, _BATCHES)
        return _by_rows(rows, self.size)

    def _call_flat(self, original: Any, function: Any, tensor_inputs: Any, captured_inputs: Any) -> Any:
        """Divide the arguments of a function that is called from Python, where none of them is placed yet."""
        if tf.executing_eagerly() and not any(is_placed(t) for t in (*tensor_inputs, *captured_inputs)):
            rows = self._common_rows(tensor_inputs)
            tensor_inputs = [self._cut_recorded(t) if rows and _rows_of(t) == rows else t for t in tensor_inputs]
        return original(function, tensor_inputs, captured_inputs)

    def _common_rows(self, tensors: Any) -> int:
        """Return the rows of the largest matrix among the arguments."""
        found = [t for t in tensors if self._has_rows(t)]
        matrices = [t for t in found if len(local_shape_of(t)) > 1] or found
        return max(((_elements(t), _rows_of(t)) for t in matrices), default=(0, 0))[1]

    def _cut_recorded(self, tensor: Tensor) -> Tensor:
        made = self.cut(tensor, "arguments of a function")
        if made is not tensor and record.could_possibly_record():
            record.record_operation("cut", [made], [tensor], lambda gradient: [gradient])
        return made


def _over_iterator(dataset: Any, *rest: Any) -> Any:
    return control_flow._tf_iterator_for_stmt(iter(dataset), *rest)


@functools.lru_cache(maxsize=1024)
def _by_rows(rows: int, size: int) -> Shard:
    return Shard(0, divided(rows, size))


def _rows_of(tensor: Any) -> int:
    shape = local_shape_of(tensor) if type(tensor) is EagerTensor else ()
    return int(shape[0]) if shape else 0


def _elements(tensor: Tensor) -> int:
    elements = 1
    for n in local_shape_of(tensor):
        elements *= int(n)
    return elements
