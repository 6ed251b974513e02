"""Capture of the data that `fit` was given, as the data of a job."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle

from client_shim.capture import arrays
from fdt import tensors
from fdt.blobs import Blobs
from fdt.job import ArrayData, Data, FeedData
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.tensors import flatten, unflatten

if TYPE_CHECKING:  # modules that need TensorFlow are imported where they are used, after the script imports it
    from client_shim.capture.feeds import FeedPlan
    from client_shim.feed import Feeder
    from fdt.service.client import Conversation

FEED = "training"  # the name of a job's only feed


@dataclass(frozen=True)
class Facts:
    """Facts about the data for `inspect` and summaries. `rows`, `batch` and `steps` are None while unknown."""

    kind: str  # "arrays" | "tf.data" | "sent by the client"
    rows: int | None
    batch: int | None
    steps: int | None
    nbytes: int  # bytes put into shared memory before training
    note: str = ""
    mapped: str = ""  # which process maps which rows of a pipeline, and why


@dataclass(frozen=True)
class Captured:
    """The captured data of one `fit`.

    Attributes:
        train: The training data of the job.
        validation: Validation data of the job; None where there are none or where the client validates.
        validation_data: The `validation_data` for Keras's own fit, also after `validation_split`.
        spec: tf.TypeSpec structure of a training batch, for models that are built lazily.
        facts: Facts about the training data.
        refs: Blobs to drop when the job is over.
        feed: How the client draws the training batches; None where workers read them.
        in_turn: Whether training and validation draw their orders from one shuffle, in the client.
    """

    train: Data
    validation: Data | None
    validation_data: Any
    spec: Any
    facts: Facts
    refs: list[BlobRef] = field(default_factory=list)
    feed: "FeedPlan | None" = None
    in_turn: bool = False

    def start_feeder(self, talk: "Conversation", blobs: Blobs, job: str, first: int = 0) -> "Feeder | None":
        """Start the thread that draws and sends the training batches; return None where workers read the data.

        Args:
            talk: The channel to the engine.
            blobs: The shared memory that the batches are written to.
            job: The job's id.
            first: Number of the first epoch to send.
        """
        if self.feed is None:
            return None
        from client_shim.feed import Feeder
        from fdt.data.epochs import DrawnEpochs

        assert isinstance(self.train, FeedData)
        return Feeder(FEED, self.feed.epochs, talk, blobs, job, first, DrawnEpochs(self.train))


@dataclass(frozen=True)
class FitData:
    """The arguments of `fit` for its training data, or the same for its validation data.

    Those from `shuffle` on are for batches that only the client can draw; the last four are tf_keras's.
    """

    x: Any
    y: Any = None
    sample_weight: Any = None
    batch_size: int | None = None
    steps_per_epoch: int | None = None
    class_weight: dict[int, float] | None = None
    shuffle: Any = True
    epochs: int = 1
    initial_epoch: int = 0
    workers: int = 1
    use_multiprocessing: bool = False
    max_queue_size: int = 10
    model: Any = None


@dataclass(frozen=True)
class FitValidation:
    """The arguments of `fit` that begin with validation_, and one of the run.

    `split`: the part of the rows that validates, in 0..1. `in_turn`: whether the orders of a shuffle that the training
    data share are to be those of one machine.
    """

    data: Any = None
    split: float = 0.0
    batch_size: int | None = None
    steps: int | None = None
    in_turn: bool = True


NO_VALIDATION = FitValidation()


class _CapturedSide(NamedTuple):
    data: Data
    spec: Any
    facts: Facts


def capture_data(
    flavor: str,
    blobs: Blobs,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    class_weight: Mapping[int, float] | None = None,
    validation: FitValidation = NO_VALIDATION,
    validate_remotely: bool = True,
    divide: bool = False,
    **training: Any,
) -> Captured:
    """Put the data of a `fit` where workers can read them; return them with the references of their blobs.

    Args:
        flavor: "keras" or "tf_keras".
        blobs: The shared memory of the client and the engine.
        x: `fit`'s x: arrays, a tf.data.Dataset, or another source that Keras accepts.
        y: Targets; None where x contains them.
        sample_weight: Sample weights, or None.
        class_weight: Weights by class, which Keras's own functions fold into the sample weights.
        validation: The arguments for the validation.
        validate_remotely: Whether workers validate; otherwise the validation data stay in the client.
        divide: Whether ranks need slices of batches, so that each may map only its own rows.
        **training: Further arguments of `fit` that FitData has.

    Raises:
        CaptureError: The data cannot be sent to workers.
        Exception: Keras's own errors for arguments that it refuses.
    """
    if validation.split and validation.data is None:
        (x, y, sample_weight), rest = arrays.split(flavor, (x, y, sample_weight), validation.split)
        validation = replace(validation, data=rest)
    side = FitData(x, y, sample_weight, class_weight=dict(class_weight) if class_weight else None, **training)
    captured = _capture_training(flavor, blobs, _as_pipeline(flavor, side), validation, divide)
    if validation.data is None or not validate_remotely or _is_shuffled(validation.data):
        return captured
    data = _capture_validation(flavor, blobs, validation, side.batch_size, divide)
    return captured if data is None else replace(captured, validation=data, refs=captured.refs + _refs(data))


def _is_shuffled(validation_data: Any) -> bool:
    """Return whether each validation reads its rows in another order."""
    dataset = None if validation_data is None else unpacked(validation_data)[0]
    if not is_dataset(dataset):
        return False
    from client_shim.capture import orders

    return orders.is_reshuffled(dataset)


def _share_a_shuffle(x: Any, validation_data: Any) -> bool:
    if not is_dataset(x) or not _is_shuffled(validation_data):
        return False
    from client_shim.capture import orders

    return orders.share_a_shuffle(x, unpacked(validation_data)[0])


def _capture_training(flavor: str, blobs: Blobs, side: FitData, validation: FitValidation, divide: bool) -> Captured:
    in_turn = validation.in_turn and _share_a_shuffle(side.x, validation.data)
    shared = "the validation data have the same shuffle, and each pass over one of them changes the other's order"
    taken, feed = shared if in_turn else _take(flavor, blobs, side, divide), None
    if isinstance(taken, str):
        from client_shim.capture import feeds

        feed = feeds.plan(flavor, side)
        taken = _fed(feed, blobs, side.initial_epoch, note=taken, mapped=_mapped_by_client(side.x) if divide else "")
    refs = _refs(taken.data)
    return Captured(taken.data, None, validation.data, taken.spec, taken.facts, refs, feed, in_turn)


def _capture_validation(
    flavor: str, blobs: Blobs, validation: FitValidation, batch_size: int | None, divide: bool
) -> Data | None:
    x, y, sample_weight = unpacked(validation.data)
    side = FitData(x, y, sample_weight, validation.batch_size or batch_size, validation.steps, shuffle=False)
    taken = _take(flavor, blobs, _as_pipeline(flavor, side), divide, in_order=validation.steps is not None)
    return None if isinstance(taken, str) else taken.data


def _as_pipeline(flavor: str, side: FitData) -> FitData:
    """Turn sparse arrays into a tf.data pipeline of their batches; return other data unchanged."""
    given = side.x, side.y, side.sample_weight
    if not arrays.are_sparse(given):
        return side
    dataset = arrays.as_dataset(flavor, *given, side.batch_size, side.steps_per_epoch, shuffle=side.shuffle)
    return replace(side, x=dataset, y=None, sample_weight=None)


def _take(flavor: str, blobs: Blobs, side: FitData, divide: bool, *, in_order: bool = True) -> _CapturedSide | str:
    """Return data that workers read by themselves, or the reason why only the client can draw them.

    `in_order`: whether the order of the rows matters.
    """
    if is_dataset(side.x):
        return _take_dataset(flavor, blobs, side, divide, in_order)
    if arrays.can_take(flavor, side.x, side.y, side.sample_weight):
        return _take_arrays(flavor, blobs, side)
    return f"a {type(side.x).__name__} runs in the script's process only"


def is_dataset(x: Any) -> bool:
    """Return whether `x` is a tf.data.Dataset; TensorFlow is not imported for it."""
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and isinstance(x, tensorflow.data.Dataset)


def _mapped_by_client(x: Any) -> str:
    if not is_dataset(x):
        return ""
    from client_shim.capture import datasets

    return datasets.mapped_by_client(x)


def _fed(feed: "FeedPlan", blobs: Blobs, first: int, note: str, mapped: str) -> _CapturedSide:
    spec = blobs.put(cloudpickle.dumps(feed.spec))
    data = FeedData(FEED, -1 if feed.steps is None else feed.steps, spec, feed.length, first)
    return _CapturedSide(data, feed.spec, Facts("sent by the client", None, None, feed.steps, 0, note, mapped))


def _take_dataset(flavor: str, blobs: Blobs, side: FitData, divide: bool, in_order: bool) -> _CapturedSide | str:
    from client_shim.capture import datasets
    from fdt.data.pipeline import Refused
    from fdt.data.source import static_rows

    for name, value in (("y", side.y), ("sample_weight", side.sample_weight)):
        if value is not None:  # Keras has the same rule
            raise ValueError(
                f"`{name}` must be part of the tf.data.Dataset that is passed as `x`. Received: {name} as well"
            )
    weigh = datasets.weighing(flavor, side.class_weight)
    dataset = datasets.weighted(side.x, weigh)
    slices, mapped = datasets.divided(side.x, weigh) if divide else (None, "")
    try:
        data = datasets.capture(dataset, blobs, slices=slices, in_order=in_order)
    except Refused as refusal:
        return str(refusal)
    steps = side.steps_per_epoch or (data.cardinality if data.cardinality >= 0 else None)
    nbytes = sum(ref.nbytes for ref in _refs(data))
    facts = Facts("tf.data", None, static_rows(dataset.element_spec), steps, nbytes, mapped=mapped)
    return _CapturedSide(data, dataset.element_spec, facts)


def _take_arrays(flavor: str, blobs: Blobs, side: FitData) -> _CapturedSide:
    element = arrays.element(flavor, side.x, side.y, side.sample_weight, side.class_weight)
    structure, leaves = flatten(element)
    rows = len(leaves[0])
    steps = side.steps_per_epoch
    batch = arrays.batch_size(side.batch_size, rows, steps)
    facts = Facts("arrays", rows, batch, steps or -(-rows // batch), tensors.packed_size(leaves))
    data = ArrayData(blobs.put_arrays(leaves), structure, rows)
    return _CapturedSide(data, unflatten(structure, _specs(leaves)), facts)


def _specs(leaves: list[Any]) -> list[Any]:
    import tensorflow as tf

    return [tf.TensorSpec([None, *a.shape[1:]], tf.string if a.dtype.kind in "OSU" else a.dtype) for a in leaves]


def _refs(data: Data) -> list[BlobRef]:
    return [value for value in vars(data).values() if isinstance(value, BlobRef) and value.id]


def unpacked(data: Any) -> tuple[Any, Any, Any]:
    """Return (x, y, sample_weight), as both flavors' unpack_x_y_sample_weight do."""
    parts = tuple(data) if isinstance(data, (list, tuple)) else (data,)
    if not 1 <= len(parts) <= 3:
        raise ValueError(f"validation_data must be (x,), (x, y) or (x, y, sample_weight). Received: {len(parts)} items")
    x, y, sample_weight = (*parts, None, None)[:3]
    return x, y, sample_weight
