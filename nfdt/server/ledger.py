"""Which batch of the epoch went to whom: each is dealt to one worker, and dealt again if that worker leaves."""

import heapq
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Ledger:
    """Batches 0, 1, ... of one epoch. `steps` is None until the source says where it ends."""

    steps: int | None
    done: int = 0
    _next: int = 0
    _returned: list[int] = field(default_factory=list)  # heap
    _hands: dict[int, deque[int]] = field(default_factory=dict)  # none is empty
    _last: dict[int, int] = field(default_factory=dict)  # the highest batch that each worker has had
    _ahead: set[int] = field(default_factory=set)  # who has more than one batch: few, at an epoch's end, of many

    def deal(self, worker: int) -> int | None:
        """Give `worker` the lowest batch that nobody has; None when there is none left."""
        if self._returned:
            batch = heapq.heappop(self._returned)
        elif self.steps is None or self._next < self.steps:
            batch, self._next = self._next, self._next + 1
        else:
            return None
        return self._give(worker, batch)

    def steal(self, worker: int, at_work: int = 1) -> int | None:
        """Give `worker` a batch that another has beyond the `at_work` it computes, so that nobody idles at the end.

        Only one behind all that `worker` has had: what reads a stream cannot go back.
        """
        last = self._last.get(worker, -1)
        rich = [w for w in self._ahead if len(self._hands[w]) > at_work and self._hands[w][-1] > last]
        if not rich:
            return None
        batch = self._hands[min(rich)].pop()
        self._look(min(rich))
        return self._give(worker, batch)

    @property
    def spent(self) -> bool:
        """Nothing is left to deal or to steal."""
        return not self._returned and self.steps is not None and self._next >= self.steps and not self._ahead

    def hand(self, worker: int) -> tuple[int, ...]:
        """Batches that `worker` has and has not pushed yet."""
        return tuple(self._hands.get(worker, ()))

    def busy(self, workers: Mapping[int, None]) -> list[int]:
        """Those of `workers`, an ordered set, that have a batch."""
        found = workers.keys() & self._hands.keys()  # as long as the fewer of both: nobody idles, or all but a few do
        return list(found) if len(found) < 2 else [worker for worker in workers if worker in found]

    def finish(self, worker: int, batch: int) -> None:
        """Count a batch whose push arrived. Raises ValueError when `worker` does not have it."""
        try:
            self._hands.get(worker, deque()).remove(batch)
        except ValueError:
            raise ValueError(f"worker {worker} pushed a batch it was not dealt. Received: {batch}") from None
        self._look(worker)
        self.done += 1

    def take_back(self, worker: int) -> None:
        """Return the batches of a worker that left, to be dealt again."""
        for batch in self._hands.pop(worker, ()):
            heapq.heappush(self._returned, batch)
        self._look(worker)

    def end_at(self, steps: int) -> None:
        """The source ended: batches `steps` and above do not exist."""
        self.steps = steps if self.steps is None else min(self.steps, steps)
        self._returned = [batch for batch in self._returned if batch < self.steps]
        heapq.heapify(self._returned)
        for worker, hand in list(self._hands.items()):
            self._hands[worker] = deque(batch for batch in hand if batch < self.steps)
            self._look(worker)

    def stop(self) -> None:
        """Deal no more and forget what was dealt: the epoch is over by the client's word."""
        self.steps = self.done
        self._returned.clear()
        self._hands.clear()
        self._ahead.clear()
        self._next = max(self._next, self.steps)

    @property
    def complete(self) -> bool:
        return self.steps is not None and self.done >= self.steps

    def _give(self, worker: int, batch: int) -> int:
        self._hands.setdefault(worker, deque()).append(batch)
        self._last[worker] = max(batch, self._last.get(worker, -1))
        self._look(worker)
        return batch

    def _look(self, worker: int) -> None:
        """What is known of a hand by its length, after it has changed."""
        count = len(self._hands.get(worker, ()))
        if count == 0:
            self._hands.pop(worker, None)
        if count > 1:
            self._ahead.add(worker)
        else:
            self._ahead.discard(worker)


@dataclass
class Epoch:
    """What the policy knows of an epoch that runs."""

    number: int
    ledger: Ledger
    samples: int = 0
    stopping: bool = False
    staleness: Counter[int] = field(default_factory=Counter)
    greeted: set[int] = field(default_factory=set)
    skipped: int = 0
