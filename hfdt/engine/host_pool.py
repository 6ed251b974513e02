"""The pool of hosts of an elastic run: which slots a discovery script lists, which are ready, and which are in use.

Slots that are withdrawn count at once. Slots that come count after they have been listed without a break for some
seconds, for longer each time that the host has been withdrawn from the run: a host that flaps does not stop training.
"""

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fdt.errors import TooFew
from fdt.launch.hosts import Host, allot, everywhere, is_here
from fdt.report import quantity

SETTLE_S, MOST_SETTLE_S = 3.0, 300.0
ASIDE_S = 60.0  # until a host that was not ready is checked again
ANSWER_S = 10.0
MOST_SLOTS = 4096  # of one host; more is a mistake
LOCALHOST = "localhost"


@dataclass
class Listing:
    """The slots of one host over time.

    Attributes:
        changes: When the discovery script began to list how many slots.
        withdrawn: How often slots in use were withdrawn.
        offered: Slots that `hfdt join` offers; they count at once.
    """

    changes: list[tuple[float, int]] = field(default_factory=lambda: [(float("-inf"), 0)])
    withdrawn: int = 0
    offered: int = 0

    @property
    def listed(self) -> int:
        """The slots that the script lists now."""
        return self.changes[-1][1]

    @property
    def now(self) -> int:
        """All slots that there are now."""
        return self.listed + self.offered

    def set(self, slots: int, now: float) -> None:
        """Record the slots that are listed at `now`."""
        if slots != self.listed:
            self.changes = [*self.changes[-20:], (now, slots)]

    def settled(self, now: float) -> int:
        """Return the slots that were listed all the time for long enough, and those that are offered."""
        since = now - min(SETTLE_S * 2**self.withdrawn, MOST_SETTLE_S)
        ends = [*(time for time, _ in self.changes[1:]), float("inf")]
        steady = min(slots for (_, slots), end in zip(self.changes, ends, strict=True) if end > since)
        return steady + self.offered


class HostPool:
    """The hosts that a run may use. Thread-safe.

    Attributes:
        in_use: The hosts of the ranks that were started last, with the slots that these have.
        routes: For each host that is ready, this machine's address as that host sees it.
        notes: Lines for the user.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.in_use: list[Host] = []
        self.routes: dict[str, str] = {}
        self.notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._clock, self._lock = clock, threading.RLock()
        self._listings: dict[str, Listing] = {}
        self._failed: Counter[str] = Counter()  # slots whose ranks were lost
        self._suspected = False  # a rank was lost that is not known
        self._aside: dict[str, tuple[float, str]] = {}  # until when a host is not checked again, and why

    # -- which hosts there are -------------------------------------------------------------------------------------
    def update(self, hosts: Sequence[Host], *, settled: bool = False) -> None:
        """Record the hosts that are listed now. `settled`: they may be used at once."""
        with self._lock:
            slots, now = {host.name: host.slots for host in hosts}, self._clock()
            for name in (name for name in slots if name not in self._listings):
                self._listings[name] = Listing()
            for name, listing in list(self._listings.items()):
                if slots.get(name, 0) + listing.offered < self._used(name) <= listing.now:
                    listing.withdrawn += 1
                listing.set(slots.get(name, 0), float("-inf") if settled else now)
                self._forget(name)

    def offer(self, host: Host) -> Callable[[], None]:
        """Add slots that may be used at once; return a function that withdraws them."""
        with self._lock:
            self._listings.setdefault(host.name, Listing()).offered += host.slots

        def withdraw() -> None:
            with self._lock:
                if (listing := self._listings.get(host.name)) is not None:
                    listing.offered -= host.slots
                    self._forget(host.name)

        return withdraw

    def _forget(self, name: str) -> None:
        """Forget a host without slots: should it come back, it is checked anew."""
        if self._listings[name].now:
            return
        self._failed.pop(name, None)
        self._aside.pop(name, None)
        self.routes.pop(name, None)
        if not self._listings[name].withdrawn:
            del self._listings[name]

    def unchecked(self) -> list[str]:
        """Return the hosts that must be checked before they are used."""
        with self._lock:
            now, names = self._clock(), [name for name, listing in self._listings.items() if listing.now]
            return [n for n in names if n not in self.routes and self._aside.get(n, (now, ""))[0] <= now]

    def ready(self, name: str, route: str) -> None:
        """Record that a host passed its check. One that went meanwhile is checked anew when it comes back."""
        with self._lock:
            if name not in self._listings or not self._listings[name].now:
                return
            if self._aside.pop(name, None) is not None:  # it did not answer, so that its ranks were lost
                self._failed.pop(name, None)
            self.routes[name] = route

    def put_aside(self, name: str, reason: str) -> None:
        """Use a host no more for some time. The reason is a note, unless it is known already."""
        with self._lock:
            _, known = self._aside.get(name, (0.0, ""))
            self._aside[name] = self._clock() + ASIDE_S, reason
            self.routes.pop(name, None)
        if reason != known:
            self.notes.put(f"{name} is not used: {reason}; it is tried again in {ASIDE_S:g} s")

    def available(self) -> list[Host]:
        """Return the slots that ranks can be started on: those in use first, then by the order of their arrival."""
        with self._lock:
            now = self._clock()
            slots = {name: listing.settled(now) - self._failed[name] for name, listing in self._listings.items()}
            usable = [Host(name, n) for name, n in slots.items() if n > 0 and name in self.routes]
            return sorted(usable, key=lambda host: not self._used(host.name))

    @property
    def own_name(self) -> str:
        """The name of this machine: as it is listed, else "localhost"."""
        with self._lock:
            return next((name for name in self._listings if name in self.routes and is_here(name)), LOCALHOST)

    def uses(self, name: str) -> bool:
        """Return whether a host has slots."""
        with self._lock:
            return name in self._listings and self._listings[name].now > 0

    def listed(self) -> str:
        """Return the listed slots for a message: "host1:2, host2:1"."""
        with self._lock:
            return ", ".join(f"{name}:{each.now}" for name, each in self._listings.items() if each.now) or "no host"

    # -- the hosts of the ranks ------------------------------------------------------------------------------------
    def take(self, count: int) -> list[Host]:
        """Return `count` slots for ranks, which are then in use, on hosts that answer.

        Raises:
            TooFew: There are fewer.
        """
        chosen = allot(self.available(), min(count, total(self.available())))
        others = {host.name: "" for host in chosen if not is_here(host.name)}
        silent = everywhere(others, ["true"], ANSWER_S)
        for name, reason in silent.items():
            self.put_aside(name, f"no answer: {reason}")
        if self._suspected and not silent and self.in_use:
            self._failed[self.in_use[-1].name] += 1
        self._suspected = False
        if (room := total(self.available())) < count:
            raise TooFew(f"there are {quantity(room, 'slot')} for {count} workers ({self.listed()})", room)
        with self._lock:
            self.in_use = allot(self.available(), count)
            return self.in_use

    def lost(self, rank: int | None) -> None:
        """Use the slot of a lost rank no more, until its host is withdrawn and listed again.

        Where mpirun does not say which rank, the hosts that do not answer have lost theirs.
        """
        names = [host.name for host in self.in_use for _ in range(host.slots)]
        if rank is None and not self.all_here:
            self._suspected = True
        elif names:
            with self._lock:
                self._failed[names[-1 if rank is None or rank >= len(names) else rank]] += 1

    def gone(self) -> list[Host]:
        """Return the slots in use that may be used no more."""
        with self._lock:
            left = {host.name: host.slots for host in self.available()}
            missing = ((host.name, host.slots - left.get(host.name, 0)) for host in self.in_use)
            return [Host(name, slots) for name, slots in missing if slots > 0]

    @property
    def all_here(self) -> bool:
        """Whether all ranks are on this machine."""
        return all(is_here(host.name) for host in self.in_use)

    def _used(self, name: str) -> int:
        return next((host.slots for host in self.in_use if host.name == name), 0)


def total(hosts: Sequence[Host]) -> int:
    """Return the number of slots."""
    return sum(host.slots for host in hosts)


def changes(before: Sequence[Host], after: Sequence[Host]) -> Mapping[str, int]:
    """Return by how many slots each host has changed."""
    difference = Counter({host.name: host.slots for host in after})
    difference.subtract({host.name: host.slots for host in before})
    return {name: slots for name, slots in difference.items() if slots}
