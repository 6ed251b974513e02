"""Settings that make recorded runs comparable, so that only the division can cause a difference."""

import builtins
import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from client_shim.replica.steps import by_script, where
from fdt.errors import UserError
from fdt.patches import replace

if TYPE_CHECKING:
    from client_shim.call import FitCall

TICK_NS = 1_000_000  # increment of the script's clocks at each reading
_CLOCKS = ("time", "monotonic", "perf_counter", "process_time")
_RATES = ("rate", "stddev", "dropout", "recurrent_dropout")  # attributes of Keras's layers that draw random numbers
SHUFFLE_OFF = "fit's shuffle is off in all runs: the permutations of the run alone and of the divided run would differ"


class Alone:
    """A process group of one rank, with the part of the interface that client_shim.replica.agreement.agreed uses."""

    rank = 0

    def broadcast(self, value: Any, name: str) -> Any:
        """Return `value`: there is no other rank."""
        return value

    def barrier(self, name: str) -> None:
        """Return: there is no other rank."""


@contextlib.contextmanager
def same_world() -> Iterator[None]:
    """Make the script's clocks alike in all runs: each read advances them by one tick. `input` raises."""
    ticks = itertools.count(1_700_000_000_000_000_000, TICK_NS)
    with contextlib.ExitStack() as stack:
        for name in _CLOCKS:
            replace(stack, time, name, functools.partial(_seconds, ticks, getattr(time, name)))
            replace(stack, time, f"{name}_ns", functools.partial(_nanoseconds, ticks, getattr(time, f"{name}_ns")))
        replace(stack, builtins, "input", _no_input)
        yield


def _seconds(ticks: Iterator[int], original: Callable[[], float]) -> float:
    return next(ticks) / 1e9 if by_script() else original()


def _nanoseconds(ticks: Iterator[int], original: Callable[[], int]) -> int:
    return next(ticks) if by_script() else original()


def _no_input(prompt: object = "") -> str:
    raise UserError(
        f"verify runs the script three times without a terminal, and input() at {where()} asks the user. "
        "Give the answer as an argument of the script"
    )


def make_comparable(call: "FitCall", note: Callable[[str], None]) -> None:
    """Turn off the permutations and dropout of a `fit`, which draw other numbers when it is divided.

    Args:
        call: The call of `fit`; its arguments and model are changed.
        note: Receives one line for each change.
    """
    from client_shim.capture.data import is_dataset  # imports NumPy, which the script has loaded by now

    if call.arguments["shuffle"] and not is_dataset(call.arguments["x"]):
        call.arguments["shuffle"] = False
        note(SHUFFLE_OFF)
    if call.flavor.built(call.model) and call.flavor.steps_per_execution(call.model) > 1:
        call.flavor.set_steps_per_execution(call.model, 1)
    quiet, drawing = _layers_that_draw(call.model)
    for layer, name in quiet:
        setattr(layer, name, 0.0)
    if quiet:
        call.model.train_function = None  # the traced function has the old rates
        note("dropout is off in all runs: in a divided run each rank draws other random numbers")
    if drawing:
        note(f"{RANDOM} {', '.join(drawing[:3])}")


RANDOM = "each rank draws other random numbers in"


def _layers_that_draw(model: Any) -> tuple[list[tuple[Any, str]], list[str]]:
    """Return (layer, attribute) of rates that can be set to 0, and the names of other layers that have a generator."""
    rates: list[tuple[Any, str]] = []
    others: list[str] = []
    for layer in _parts(model):
        found = [name for name in _RATES if _is_rate(layer, name)]
        rates += [(layer, name) for name in found]
        if not found and _draws(layer):
            others.append(layer.name)
    return rates, others


def _parts(model: Any) -> list[Any]:
    """Return all layers and the cells of recurrent ones."""
    layers = list(model._flatten_layers(include_self=False)) if hasattr(model, "_flatten_layers") else []
    cells = [layer.cell for layer in layers if hasattr(layer, "cell")]
    return list({id(each): each for each in (*layers, *cells)}.values())


def _is_rate(layer: Any, name: str) -> bool:
    of_keras = type(layer).__module__.startswith(("keras.", "tf_keras."))
    value = vars(layer).get(name)
    return of_keras and isinstance(value, float) and value > 0


def _draws(layer: Any) -> bool:
    """Return whether the layer has a generator and none of Keras's own rates."""
    return any(type(value).__name__ == "SeedGenerator" for value in vars(layer).values()) and not any(
        name in vars(layer) for name in _RATES
    )
