"""The orders that one `fit` draws of a shuffled dataset which workers read by themselves."""

import contextlib
from collections.abc import Iterator
from typing import Any

from client_shim.call import FitCall
from client_shim.capture.data import Captured, is_dataset
from fdt.job import GraphData


def owed(call: FitCall, captured: Captured, history: Any) -> Any:
    """Return `history`. The script's dataset is owed the iterators that workers made of it."""
    train = captured.train
    if isinstance(train, GraphData) and is_dataset(call.arguments["x"]) and history.epoch:
        from client_shim.capture import orders
        from fdt.data import iterators_of_fit

        epochs = history.epoch[-1] + 1 - max(call.arguments["initial_epoch"] or 0, 0)
        made = iterators_of_fit(train, call.steps_per_epoch, epochs, call.flavor.name)
        orders.owe(call.arguments["x"], made)
    return history


@contextlib.contextmanager
def kept(call: FitCall, captured: Captured) -> Iterator[None]:
    """Refuse, within the context, iterators of the script that change the order of the next epoch."""
    with contextlib.ExitStack() as stack:
        if isinstance(captured.train, GraphData) and is_dataset(call.arguments["x"]):
            from client_shim.capture import orders

            stack.enter_context(orders.trained_on(call.arguments["x"]))
        yield
