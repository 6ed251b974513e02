"""The callbacks that put training into lock step."""

from typing import Any

import keras
import pytest
import tf_keras

from client_shim.callbacks import batch_hooks, watches_tests
from fdt.job import BatchHooks

c, t = keras.callbacks, tf_keras.callbacks


class ReadsEpochs(c.Callback):  # type: ignore[misc]
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None: ...


class ReadsSteps(c.Callback):  # type: ignore[misc]
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None: ...


class OwnCheckpoint(c.ModelCheckpoint):  # type: ignore[misc]
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None: ...


class ReadsTests(c.Callback):  # type: ignore[misc]
    def on_test_batch_end(self, batch: int, logs: Any = None) -> None: ...


@pytest.mark.parametrize(
    ("callback", "expected"),
    [
        (c.EarlyStopping(), BatchHooks.NONE),
        (c.ReduceLROnPlateau(), BatchHooks.NONE),
        (c.CSVLogger("unused"), BatchHooks.NONE),
        (c.History(), BatchHooks.NONE),
        (c.ModelCheckpoint("unused.keras"), BatchHooks.NONE),
        (c.ModelCheckpoint("unused.keras", save_freq=10), BatchHooks.STATE),
        (OwnCheckpoint("unused.keras"), BatchHooks.NONE),
        (c.TensorBoard("unused"), BatchHooks.NONE),
        (c.TensorBoard("unused", update_freq="batch"), BatchHooks.LOGS),
        (c.TerminateOnNaN(), BatchHooks.LOGS),
        (c.LambdaCallback(on_epoch_end=print), BatchHooks.NONE),
        (c.LambdaCallback(on_train_batch_end=print), BatchHooks.STATE),
        (ReadsEpochs(), BatchHooks.NONE),
        (ReadsSteps(), BatchHooks.STATE),
        (t.EarlyStopping(), BatchHooks.NONE),
        (t.ModelCheckpoint("unused"), BatchHooks.NONE),
        (t.TensorBoard("unused"), BatchHooks.NONE),
        (t.TerminateOnNaN(), BatchHooks.LOGS),
        (t.LambdaCallback(on_epoch_end=print), BatchHooks.NONE),
        (t.LambdaCallback(on_batch_end=print), BatchHooks.STATE),
    ],
)
def test_level(callback: Any, expected: BatchHooks) -> None:
    assert batch_hooks([callback]) is expected


def test_the_most_demanding_decides() -> None:
    assert batch_hooks([]) is BatchHooks.NONE
    assert batch_hooks([ReadsEpochs(), c.TerminateOnNaN()]) is BatchHooks.LOGS
    assert batch_hooks([ReadsSteps(), c.TerminateOnNaN()]) is BatchHooks.STATE


def test_only_callbacks_that_look_into_evaluation_keep_it_in_the_client() -> None:
    assert watches_tests([ReadsTests()])
    assert not watches_tests([ReadsSteps(), c.EarlyStopping(), c.TensorBoard("unused")])
