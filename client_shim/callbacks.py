"""Analysis of callbacks: what they read or change at single steps."""

from collections.abc import Callable, Iterable
from typing import Any

from fdt.job import BatchHooks

_TRAIN_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_TEST_HOOKS = ("on_test_begin", "on_test_end", "on_test_batch_begin", "on_test_batch_end")
_KERAS = ("keras.", "tf_keras.")


def batch_hooks(callbacks: Iterable[Any]) -> BatchHooks:
    """Return the largest access to a step's results that any of `callbacks` may make."""
    return max((_wanted(callback) for callback in callbacks), default=BatchHooks.NONE)


def watches_tests(callbacks: Iterable[Any]) -> bool:
    """Return whether one of `callbacks` overrides a hook of evaluation; evaluation must then run in the client."""
    owners = {_owner(callback, hook) for callback in callbacks for hook in _TEST_HOOKS}
    return bool(owners - {None, "keras.TensorBoard"})  # TensorBoard only records the result


def _wanted(callback: Any) -> BatchHooks:
    owners = {_owner(callback, hook) for hook in _TRAIN_HOOKS} - {None}
    return max((_known(owner, callback) for owner in owners), default=BatchHooks.NONE)


def _owner(callback: Any, hook: str) -> str | None:
    """Return the name of the class that overrides `hook`: "" for the object itself, None for no override."""
    if hook in getattr(callback, "__dict__", {}):
        return ""
    for cls in type(callback).__mro__:
        if hook in vars(cls):
            own = cls.__module__.startswith(_KERAS)
            if own and cls.__name__ in ("Callback", "History", "ProgbarLogger", "LambdaCallback"):
                return None
            return f"keras.{cls.__name__}" if own else cls.__name__
    return None


def _known(owner: str | None, callback: Any) -> BatchHooks:
    rule = _RULES.get(owner or "")
    return rule(callback) if rule else BatchHooks.STATE


def _unless_epoch(attribute: str, otherwise: BatchHooks) -> Callable[[Any], BatchHooks]:
    def rule(callback: Any) -> BatchHooks:
        return BatchHooks.NONE if getattr(callback, attribute, "epoch") == "epoch" else otherwise

    return rule


def _never(_: Any) -> BatchHooks:
    return BatchHooks.NONE


def _logs(_: Any) -> BatchHooks:
    return BatchHooks.LOGS


# Keras's own callbacks that override batch hooks, and what they need of a step.
_RULES: dict[str, Callable[[Any], BatchHooks]] = {
    "keras.TerminateOnNaN": _logs,
    "keras.ModelCheckpoint": _unless_epoch("save_freq", BatchHooks.STATE),
    "keras.BackupAndRestore": _unless_epoch("save_freq", BatchHooks.STATE),
    "keras.OrbaxCheckpoint": _unless_epoch("save_freq", BatchHooks.STATE),
    "keras.TensorBoard": _unless_epoch("update_freq", BatchHooks.LOGS),
    "keras.CallbackList": _never,
    "keras.BaseLogger": _never,
}
