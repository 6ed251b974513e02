"""Transfers of tensors on a simulated clock, over channels that they share.

Whenever a flow begins or ends, all rates are computed again, by max-min fairness: no flow's rate can be raised without
lowering that of a flow with an equal or lower rate. Flows of a fair transport converge to these rates (Bertsekas and
Gallager, Data Networks, 2nd edition, section 6.5.2), and network simulators such as SimGrid use them as their fluid
model. A first-in, first-out queue would instead delay all flows behind one large tensor, which packet networks do not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt
import simpy

from fdt.network.topology import Route, Topology

_STANDSTILL = "No scheduled events left"  # text of simpy's error
Floats = npt.NDArray[np.float64]
Paths = npt.NDArray[np.int64]


def fair_rates(capacity: Floats, paths: Paths) -> Floats:
    """Compute each flow's rate by progressive filling.

    Args:
        capacity: (channels,) bytes/s of each channel. The last one is a placeholder without a limit.
        paths: (flows, length) channels of each flow, padded with the placeholder.

    Returns:
        (flows,) bytes/s; infinite where no channel limits.
    """
    rates = np.full(len(paths), np.inf)
    left, load = capacity, np.bincount(paths.ravel(), minlength=len(capacity))
    rising = np.arange(len(paths))
    while len(rising):
        share = left[paths] / load[paths]  # only channels in use: a large cluster has many others
        least = share.min()
        if least == np.inf:
            break
        stuck = (share <= least * (1 + 1e-12)).any(axis=1)
        rates[rising[stuck]] = least
        taken = np.bincount(paths[stuck].ravel(), minlength=len(capacity))
        left, load = np.maximum(left - least * taken, 0.0), load - taken
        rising, paths = rising[~stuck], paths[~stuck]
    return rates


_DONE = 1e-12  # part of the simulated time: a flow with less time left has ended, but for rounding


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
        done = self._left <= self._rates * (_DONE * max(1.0, self._env.now))
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


class Transfers:
    """The flows of one simulation. `sent_bytes`: for each channel, the bytes of all flows begun so far."""

    def __init__(self, env: simpy.Environment, topology: Topology) -> None:
        self._env = env
        self._limits = [link.bandwidth for link in topology.channels]
        self.sent_bytes = [0] * len(self._limits)
        self._wanted = [0.0] * len(self._limits)  # for each channel, the sum of its flows' full rates
        self._flows = [0] * len(self._limits)
        self._free: list[dict[Flow, None]] = [{} for _ in self._limits]  # for each channel, flows at their full rate
        self._contended = Contended(env, self._limits, self._end)

    def send(self, route: Route, nbytes: float) -> Any:
        """Start a transfer; return the event of the arrival of its last byte."""
        most = min((self._limits[channel] for channel in route.channels), default=inf)
        for channel in route.channels:
            self.sent_bytes[channel] += int(nbytes)
        if nbytes <= 0 or most == inf:
            return self._env.timeout(route.latency_s)
        flow = Flow(route, float(nbytes), most, self._env.now, self._env.event())
        self._begin(flow)
        return flow.arrival

    def _begin(self, flow: Flow) -> None:
        for channel in flow.route.channels:
            self._wanted[channel] += flow.most
            self._flows[channel] += 1
        full = [channel for channel in flow.route.channels if self._wanted[channel] > self._limits[channel]]
        for channel in full:
            for other in list(self._free[channel]):
                self._contend(other)
        if full:
            flow.free = False
            self._contended.begin(flow)
            return
        for channel in flow.route.channels:
            self._free[channel][flow] = None
        self._env.timeout(flow.left / flow.most, flow).callbacks.append(self._ring)

    def _contend(self, flow: Flow) -> None:
        """Move a flow to `_contended`: one of its channels has become too narrow."""
        self._leave(flow)
        flow.left = max(0.0, flow.left - flow.most * (self._env.now - flow.since_s))
        self._contended.begin(flow)

    def _leave(self, flow: Flow) -> None:
        flow.free = False
        for channel in flow.route.channels:
            del self._free[channel][flow]

    def _ring(self, alarm: Any) -> None:
        """End a flow, if it had its full rate all the time."""
        if alarm.value.free:
            self._leave(alarm.value)
            self._end(alarm.value)

    def _end(self, flow: Flow) -> None:
        for channel in flow.route.channels:
            self._flows[channel] -= 1
            self._wanted[channel] = self._wanted[channel] - flow.most if self._flows[channel] else 0.0
        if flow.route.latency_s:
            self._env.timeout(flow.route.latency_s).callbacks.append(lambda _: flow.arrival.succeed())
        else:
            flow.arrival.succeed()


def run_until(env: simpy.Environment, event: Any) -> bool:
    """Run the simulation until `event`. Return False if no event is left before it."""
    try:
        env.run(until=event)
    except RuntimeError as error:
        if _STANDSTILL not in str(error):
            raise
        return False
    return True
