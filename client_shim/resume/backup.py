"""Keras's BackupAndRestore: it restores before the data are captured, because passes over them begin at its epoch."""

from client_shim.call import FitCall
from fdt.errors import CaptureError


def restore_backup(call: FitCall) -> None:
    """Let a BackupAndRestore restore the model, and its epoch become the call's `initial_epoch`.

    Keras's own loop restores again, later. The script's other callbacks are not called.

    Raises:
        CaptureError: tf_keras's saved within an epoch.
    """
    model, flavor, given = call.model, call.flavor, int(call.arguments["initial_epoch"] or 0)
    kind = flavor.keras.callbacks.BackupAndRestore
    for callback in call.callbacks:
        if isinstance(callback, kind):
            callback.set_model(model)
            callback.on_train_begin()
    epoch, step = flavor.restored(model, call.steps_per_epoch, given)
    if step:
        raise CaptureError(
            f"BackupAndRestore restored step {step} of epoch {epoch + 1}, but workers can begin only at the start of "
            "an epoch; use save_freq='epoch'"
        )
    call.arguments["initial_epoch"] = epoch


def refuse_backup(call: FitCall, number: int) -> None:
    """Refuse a BackupAndRestore that has an epoch for a `fit` that a resumed run has not begun before.

    Raises:
        CaptureError: It has.
    """
    given = int(call.arguments["initial_epoch"] or 0)
    restore_backup(call)
    if call.arguments["initial_epoch"] != given:
        raise CaptureError(
            f"fit {number} has no checkpoint that --resume could continue, and BackupAndRestore would begin at epoch "
            f"{call.arguments['initial_epoch'] + 1}; start the run without --resume"
        )
