"""Flows that share narrow channels. Whenever a flow begins or ends, all rates are computed again (fair_sharing.py)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from fdt.network.fair_sharing import fair_rates
from fdt.network.topology import Route

_DONE_BYTES = 1e-3  # bytes that rounding may leave of an ended flow


@dataclass(eq=False)
class Flow:
    """A transfer under way.

    Attributes:
        route: Its channels.
        left: Bytes that were left at `since_s`.
        most: Its rate without competition, in bytes/s.
        since_s: Simulated time, in seconds.
        arrival: The event of its arrival.
    """

    route: Route
    left: float
    most: float
    since_s: float
    arrival: Any
    free: bool = True  # it has its full rate `most`


class Contended:
    """The flows that share channels. `limits`: bytes/s of each channel. `ended`: called with each flow that ends."""

    def __init__(self, env: simpy.Environment, limits: Sequence[float], ended: Callable[[Flow], None]) -> None:
        self._env, self._ended = env, ended
        self._capacity = np.array([*limits, np.inf])
        self._flows: list[Flow] = []
        self._paths = np.empty((0, 1), np.int64)
        self._left = np.empty(0)  # bytes of each flow
        self._rates = np.empty(0)
        self._begun: list[Flow] = []  # at this instant
        self._settled_s = env.now  # the time for which `_left` is valid
        self._alarm = 0  # number of the latest alarm; earlier ones are ignored
        self._stale = False

    def begin(self, flow: Flow) -> None:
        """Add a flow."""
        self._begun.append(flow)
        self._change()

    def _change(self) -> None:
        """Schedule one computation of rates for all changes of this instant."""
        if not self._stale:
            self._stale = True
            self._env.timeout(0).callbacks.append(self._share)

    def _share(self, _: Any) -> None:
        self._stale = False
        self._advance()
        if self._begun:
            self._join()
        self._rates = fair_rates(self._capacity, self._paths)
        self._alarm += 1
        if self._flows:
            ends_s = self._left / self._rates
            first = int(ends_s.argmin())
            self._env.timeout(max(0.0, float(ends_s[first])), (self._alarm, first)).callbacks.append(self._ring)

    def _join(self) -> None:
        """Add the flows that began at this instant."""
        ways = [flow.route.channels for flow in self._begun]
        width, stand_in = max(self._paths.shape[1], *map(len, ways)), len(self._capacity) - 1
        wider = (0, width - self._paths.shape[1])
        old = np.pad(self._paths, ((0, 0), wider), constant_values=stand_in) if wider[1] else self._paths
        self._paths = np.concatenate((old, [(*way, *[stand_in] * (width - len(way))) for way in ways]))
        self._left = np.concatenate((self._left, [flow.left for flow in self._begun]))
        self._flows += self._begun
        self._begun.clear()

    def _ring(self, alarm: Any) -> None:
        """End the flow that ends first by the rates of when the alarm was set."""
        number, first = alarm.value
        if number != self._alarm:
            return
        self._advance()
        done = self._left <= _DONE_BYTES
        done[first] = True
        ended = [self._flows[index] for index in np.flatnonzero(done)]
        self._flows = [flow for flow, over in zip(self._flows, done, strict=True) if not over]
        self._paths, self._left, self._rates = self._paths[~done], self._left[~done], self._rates[~done]
        for flow in ended:
            self._ended(flow)
        self._change()

    def _advance(self) -> None:
        """Advance `_left` to the current time."""
        self._left = self._left - self._rates * (self._env.now - self._settled_s)
        self._settled_s = self._env.now
