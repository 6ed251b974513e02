"""Assignment of an epoch's batches to workers: each batch goes to one worker, and to another if that worker leaves."""

import heapq
from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RemainingBatches:
    """The batches of an epoch that no update has taken: `returned`, in order, and all from `next` on."""

    next: int = 0
    returned: tuple[int, ...] = ()


@dataclass
class BatchDispatcher:
    """Batches 0, 1, ... of one epoch. `steps` is None until the length of the source is known.

    `remaining` is set once the epoch is suspended: `steps` then counts the batches that are done or being computed.
    """

    steps: int | None
    done: int = 0
    remaining: RemainingBatches | None = None
    _next: int = 0
    _returned: list[int] = field(default_factory=list)  # heap
    _assigned: dict[int, deque[int]] = field(default_factory=dict)  # never an empty deque
    _last: dict[int, int] = field(default_factory=dict)  # by worker: its highest batch so far
    _ahead: set[int] = field(default_factory=set)  # workers with more than one batch; few at an epoch's end

    @classmethod
    def of(cls, steps: int | None, remaining: RemainingBatches) -> "BatchDispatcher":
        """Return the dispatcher of an epoch of which only these batches remain."""
        returned = list(remaining.returned)
        return cls(steps, done=remaining.next - len(returned), _next=remaining.next, _returned=returned)

    def assign(self, worker: int) -> int | None:
        """Assign the lowest free batch to `worker`; return None if none is left."""
        if self._returned:
            batch = heapq.heappop(self._returned)
        elif self.steps is None or self._next < self.steps:
            batch, self._next = self._next, self._next + 1
        else:
            return None
        return self._record(worker, batch)

    def reassign(self, worker: int, at_work: int = 1) -> int | None:
        """Move to `worker` a batch that another worker has assigned but does not compute yet, so that no worker idles.

        The batch must follow all batches that `worker` has had, because a reader of a stream cannot go back.

        Args:
            worker: Number of the worker that needs a batch.
            at_work: Number of batches that the other worker computes now.
        """
        last = self._last.get(worker, -1)
        rich = [w for w in self._ahead if len(self._assigned[w]) > at_work and self._assigned[w][-1] > last]
        if not rich:
            return None
        batch = self._assigned[min(rich)].pop()
        self._update_ahead(min(rich))
        return self._record(worker, batch)

    @property
    def exhausted(self) -> bool:
        """Whether no batch is left to assign or to reassign."""
        return not self._returned and self.steps is not None and self._next >= self.steps and not self._ahead

    def assigned(self, worker: int) -> tuple[int, ...]:
        """Return the batches that `worker` has and has not pushed yet."""
        return tuple(self._assigned.get(worker, ()))

    def busy(self, workers: Mapping[int, None]) -> list[int]:
        """Return those of `workers`, an ordered set, that have a batch."""
        # the cost is that of the smaller set: either few workers ask, or few have a batch
        found = workers.keys() & self._assigned.keys()
        return list(found) if len(found) < 2 else [worker for worker in workers if worker in found]

    def all_with(self, workers: Mapping[int, None]) -> bool:
        """Return whether only `workers` have batches."""
        return self._assigned.keys() <= workers.keys()

    def finish(self, worker: int, batch: int) -> None:
        """Count a batch whose push arrived. Raises ValueError if `worker` does not have it."""
        try:
            self._assigned.get(worker, deque()).remove(batch)
        except ValueError:
            raise ValueError(f"worker {worker} pushed a batch that was not assigned to it. Received: {batch}") from None
        self._update_ahead(worker)
        self.done += 1

    def take_back(self, worker: int) -> None:
        """Free the batches of a worker that left."""
        for batch in self._assigned.pop(worker, ()):
            heapq.heappush(self._returned, batch)
        self._update_ahead(worker)

    def suspend(self, computing: Collection[int], at_work: int) -> None:
        """Assign no more batches. Workers in `computing` finish the `at_work` batches that they compute."""
        if self.remaining is not None or self.exhausted:
            return
        free = self._returned
        for worker, assigned in list(self._assigned.items()):
            kept = [assigned.popleft() for _ in range(min(at_work, len(assigned)))] if worker in computing else []
            free += assigned
            self._assigned[worker] = deque(kept)
            self._update_ahead(worker)
        first = self._next if self.steps is None else min(self._next, self.steps)
        self.remaining = RemainingBatches(first, tuple(sorted(free)))
        self._returned = []
        self.steps = self._next = self.done + sum(map(len, self._assigned.values()))

    def _end_suspended_at(self, steps: int) -> None:
        """Drop batches `steps` and above of a suspended epoch."""
        assert self.remaining is not None and self.steps is not None
        beyond = [
            (worker, batch) for worker, assigned in self._assigned.items() for batch in assigned if batch >= steps
        ]
        for worker, batch in beyond:
            self._assigned[worker].remove(batch)
            self._update_ahead(worker)
        lost = [batch for batch in self._returned if batch >= steps]
        self._returned = [batch for batch in self._returned if batch < steps]
        self.steps = self._next = self.steps - len(beyond) - len(lost)
        returned = tuple(batch for batch in self.remaining.returned if batch < steps)
        self.remaining = RemainingBatches(min(self.remaining.next, steps), returned)

    def end_at(self, steps: int) -> None:
        """Drop batches `steps` and above: the source has ended."""
        if self.remaining is not None:
            self._end_suspended_at(steps)
            return
        self.steps = steps if self.steps is None else min(self.steps, steps)
        self._returned = [batch for batch in self._returned if batch < self.steps]
        heapq.heapify(self._returned)
        for worker, assigned in list(self._assigned.items()):
            self._assigned[worker] = deque(batch for batch in assigned if batch < self.steps)
            self._update_ahead(worker)

    def stop(self) -> None:
        """End the epoch at the client's request: assign no more batches and forget the assigned ones."""
        self.steps = self.done
        self._returned.clear()
        self._assigned.clear()
        self._ahead.clear()
        self._next = max(self._next, self.steps)

    @property
    def complete(self) -> bool:
        """Whether all batches were pushed."""
        return self.steps is not None and self.done >= self.steps

    def _record(self, worker: int, batch: int) -> int:
        self._assigned.setdefault(worker, deque()).append(batch)
        self._last[worker] = max(batch, self._last.get(worker, -1))
        self._update_ahead(worker)
        return batch

    def _update_ahead(self, worker: int) -> None:
        """Update the sets that depend on the number of the worker's batches."""
        count = len(self._assigned.get(worker, ()))
        if count == 0:
            self._assigned.pop(worker, None)
        if count > 1:
            self._ahead.add(worker)
        else:
            self._ahead.discard(worker)


@dataclass(frozen=True)
class Begun:
    """The part of an epoch that was done before the epoch was suspended: its counts, and what remains."""

    remaining: RemainingBatches = RemainingBatches()
    samples: int = 0
    skipped: int = 0


NOT_BEGUN = Begun()


@dataclass
class Epoch:
    """The scheduler's state of a running epoch."""

    number: int
    dispatcher: BatchDispatcher
    samples: int = 0
    stopping: bool = False
    staleness: Counter[int] = field(default_factory=Counter)
    greeted: set[int] = field(default_factory=set)
    skipped: int = 0
    early: bool = False  # overlapped epochs: the client has not asked for this epoch yet

    def count(self, samples: int, tau: int) -> None:
        """Count a push that was applied; `tau`: its staleness."""
        self.samples += samples
        self.staleness[tau] += 1

    def skip(self, batches: int) -> None:
        """Count batches that were left out."""
        self.skipped += batches

    def let_end(self) -> None:
        """Record that the client has asked for the epoch."""
        self.early = False

    def stop(self) -> None:
        """Assign no more batches."""
        self.stopping = True
        self.dispatcher.stop()
