"""Notes for the user on numbers that differ from Keras's because the length of the data is unknown.

Keras learns from its iterator's error that such an epoch has ended. Within the step that fails, TensorFlow still runs
the operations that need no data: the count of updates, and the count of rows where the size of a batch is static.
"""

from typing import TYPE_CHECKING, Any

from client_shim.call import FitCall
from client_shim.job import has_one_machines_numbers
from client_shim.state import ScriptRun

if TYPE_CHECKING:
    from client_shim.feed import Feeder

UPDATES = (
    "the length of the data is unknown: on one machine Keras counts an update too many at the end of the data, which "
    "affects schedules and Adam's bias correction; the server counts no such update"
)
ENDED = (
    "the data end within an epoch of steps_per_epoch batches: on one machine Keras counts an update too many there, "
    "which affects schedules and Adam's bias correction; the server counts no such update"
)
ROWS = (
    "the length of the data is unknown and their batches have a static size: on one machine the loss in Keras's logs "
    "is a mean over one batch too many, of loss 0"
)

EMPTY = (
    "the length of the data is unknown: if they end exactly with an epoch of steps_per_epoch batches, Keras trains an "
    "empty epoch next on one machine; workers begin the data anew"
)


def notes(engine: str, call: FitCall, spec: Any, *, known: bool) -> list[str]:
    """Return the notes of a `fit` whose numbers are otherwise those of one machine.

    Args:
        engine: "hfdt" or "nfdt".
        call: The call of `fit`.
        spec: tf.TypeSpec structure of a batch.
        known: Whether the number of batches in a pass over the data is known, or infinite.
    """
    if known or not _counts_a_failed_step(call):
        return []
    import tensorflow as tf  # the script has imported it by now

    first = next((leaf for leaf in tf.nest.flatten(spec) if isinstance(leaf, tf.TensorSpec) and leaf.shape.rank), None)
    static = first is not None and first.shape[0] is not None
    empty = call.flavor.name == "keras" and bool(call.steps_per_epoch)
    return [UPDATES] * (engine == "nfdt") + [ROWS] * static + [EMPTY] * empty


def note_end(run: ScriptRun, call: FitCall, feeder: "Feeder | None") -> None:
    """Note that the script's batches ended within an epoch of `steps_per_epoch`, where Keras's count is another."""
    ended = feeder is not None and feeder.ran_out and has_one_machines_numbers(run)
    if ended and run.engine == "nfdt" and _counts_a_failed_step(call):
        run.reporters.note(ENDED)


def _counts_a_failed_step(call: FitCall) -> bool:
    return not (call.model.run_eagerly or getattr(call.model, "jit_compile", False) is True)
