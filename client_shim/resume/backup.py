"""Keras's BackupAndRestore: it restores before the data are captured, because passes over them begin at its epoch."""

from client_shim.call import FitCall
from fdt.errors import CaptureError


def restore_backup(call: FitCall) -> bool:
    """Let a BackupAndRestore restore the model, and its epoch become the call's `initial_epoch`.

    Keras's own loop restores again, later. The callbacks of other classes are not called.

    Returns:
        Whether the epoch is another one than the script's.

    Raises:
        CaptureError: tf_keras's saved within an epoch.
    """
    model, flavor, given = call.model, call.flavor, int(call.arguments["initial_epoch"] or 0)
    kind = flavor.keras.callbacks.BackupAndRestore
    for callback in call.callbacks:
        if isinstance(callback, kind):
            callback.set_model(model)
            kind.on_train_begin(callback)
    epoch, step = flavor.restored(model, call.steps_per_epoch, given)
    if step:
        raise CaptureError(
            f"BackupAndRestore restored step {step} of epoch {epoch + 1}, and workers begin at the start of an epoch; "
            "save_freq='epoch' saves there"
        )
    call.arguments["initial_epoch"] = epoch
    return epoch != given
