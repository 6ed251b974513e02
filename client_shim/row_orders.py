"""The row orders that one `fit` draws from a shuffled dataset.

Workers that read a dataset by themselves make the iterators of `fit` in place of the script's dataset. It is owed them
after each epoch, so a callback reads the rows of one machine. What a callback reads gives the next epoch another order
there, which workers do not know: the next epoch is refused.
"""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from client_shim.call import FitCall
from client_shim.capture.data import Captured, is_dataset, unpacked
from client_shim.job import has_one_machines_numbers
from client_shim.state import ScriptRun
from fdt.errors import UserError
from fdt.job import GraphData

if TYPE_CHECKING:  # it needs TensorFlow
    from client_shim.capture.orders import ShuffleGuard


ANEW = (
    "this fit reads its shuffled rows in the same orders as the earlier fit, because the pipeline repeats or joins "
    "them after the shuffle; on one machine it reads new orders"
)


class RowOrders:
    """The orders of the training data of one `fit`.

    Args:
        run: The run of the script.
        call: The call of `fit`.
        captured: The captured data of the call.
    """

    def __init__(self, run: ScriptRun, call: FitCall, captured: Captured) -> None:
        self._call, self._train, self._validation = call, captured.train, captured.validation_data
        self._exact, self._note = has_one_machines_numbers(run), run.reporters.note
        self._in_turn = captured.in_turn
        self._epochs = self._owed = 0
        self._guard: ShuffleGuard | None = None

    def begin_at(self, first: int) -> None:
        """Note the epochs before `first`, which an earlier run has trained. Raises UserError where they matter."""
        self._epochs = first - (self._call.arguments["initial_epoch"] or 0)
        if self._epochs:
            self._refuse_caches()
            self._owe()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Note, within the context, what the script reads of the shuffled training data."""
        with contextlib.ExitStack() as stack:
            if self._exact and (self._in_turn or self._by_workers()):
                from client_shim.capture import orders

                if not self._in_turn and orders.starts_anew(self._call.arguments["x"]):
                    self._note(ANEW)
                guard = orders.trained_on(self._call.arguments["x"], in_this_thread=self._in_turn)
                self._guard = stack.enter_context(guard)
            yield

    def epoch_begins(self) -> None:
        """Raise UserError if the epoch has another order on one machine, because the script has read the dataset."""
        if self._guard is None:
            return
        if self._guard.place:
            raise UserError(
                "a callback must not read the shuffled rows that fit trains on before the last epoch has ended: that "
                f"changes the next epoch's order. Received: an iterator at {self._guard.place}; give the shuffle "
                "reshuffle_each_iteration=False, or use --capture replica"
            )
        if self._in_turn:
            self._guard.stop()  # from now on the client draws in the order of one machine
        else:
            self._guard.begin_epoch()

    def epoch_ended(self) -> None:
        """Note that workers have read one more epoch."""
        self._epochs += 1
        self._owe()
        if self._guard is not None:
            self._guard.end_epoch()

    def _owe(self) -> None:
        """Owe the script's dataset the iterators that workers made of it in the epochs up to now."""
        if not self._by_workers():
            return
        from client_shim.capture import orders
        from fdt.data import iterators_of_fit

        assert isinstance(self._train, GraphData)
        made = iterators_of_fit(self._train, self._call.steps_per_epoch, self._epochs, self._call.flavor.name)
        orders.owe(self._call.arguments["x"], made - self._owed)
        self._owed = made

    def _refuse_caches(self) -> None:
        """Raise UserError where a resumed `fit` would fill its caches in another order than the first one."""
        from client_shim.capture import orders

        datasets = [self._call.arguments["x"], unpacked(self._validation)[0]] if self._in_turn else []
        if any(orders.is_cached(dataset) for dataset in datasets):
            raise UserError(
                "a fit cannot be resumed if its training and validation data share a shuffle and are cached after it, "
                "because the caches would hold other rows. Received: epochs that an earlier run has trained; run the "
                "script again without --resume"
            )

    def _by_workers(self) -> bool:
        return isinstance(self._train, GraphData) and is_dataset(self._call.arguments["x"])
