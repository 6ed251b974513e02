"""Tensors that travel on a simulated clock.

A transfer is a flow over the channels of its route. Flows under way share each channel max-min fairly (sharing.py), so
rates change whenever one begins or ends. The last byte arrives the route's latency after it was sent. Nothing is lost
and nothing is retried; what a protocol adds to the bytes is left out.
"""

from typing import Any

import numpy as np
import simpy

from fdt.network.sharing import fair_rates
from fdt.network.topology import Route, Topology

_DONE_BYTES = 1e-3  # what may be left of a flow that has ended, for rounding


class Transfers:
    """The flows of one simulation. `carried`: bytes by channel of `topology`, so far begun."""

    def __init__(self, env: simpy.Environment, topology: Topology) -> None:
        self._env = env
        self._limits = [link.bandwidth for link in topology.channels]  # as numbers: a route has few
        self._capacity = np.array([*self._limits, np.inf])
        self.carried = [0] * len(topology.channels)
        self._paths = np.empty((0, 1), np.int64)
        self._left = np.empty(0)  # bytes of each flow
        self._rates = np.empty(0)
        self._arrivals: list[tuple[Any, float]] = []  # of each flow: its event, its latency
        self._begun: list[tuple[Route, float, Any]] = []  # at this instant: their bytes and events; no flows yet
        self._settled_s = env.now  # until when `_left` is right
        self._alarm = 0  # only the latest set counts
        self._stale = False

    def send(self, route: Route, nbytes: float) -> Any:
        """An event that happens when the last byte has arrived."""
        for channel in route.channels:
            self.carried[channel] += int(nbytes)
        if nbytes <= 0 or all(self._limits[channel] == np.inf for channel in route.channels):
            return self._env.timeout(route.latency_s)
        arrival = self._env.event()
        self._begun.append((route, float(nbytes), arrival))
        self._change()
        return arrival

    def _change(self) -> None:
        """New rates, once for all that happens at this instant."""
        if not self._stale:
            self._stale = True
            self._env.timeout(0).callbacks.append(self._share)

    def _share(self, _: Any) -> None:
        self._stale = False
        self._advance()
        if self._begun:
            self._begin()
        self._rates = fair_rates(self._capacity, self._paths)
        self._alarm += 1
        if len(self._left):
            ends_s = self._left / self._rates
            first = int(ends_s.argmin())
            self._env.timeout(float(ends_s[first]), (self._alarm, first)).callbacks.append(self._ring)

    def _begin(self) -> None:
        """What was sent at this instant becomes flows."""
        ways = [route.channels for route, _, _ in self._begun]
        width, stand_in = max(self._paths.shape[1], *map(len, ways)), len(self._limits)
        if width > self._paths.shape[1]:
            wider = (0, width - self._paths.shape[1])
            self._paths = np.pad(self._paths, ((0, 0), wider), constant_values=stand_in)
        self._paths = np.concatenate((self._paths, [(*way, *[stand_in] * (width - len(way))) for way in ways]))
        self._arrivals += [(arrival, route.latency_s) for route, _, arrival in self._begun]
        self._left = np.concatenate((self._left, [nbytes for _, nbytes, _ in self._begun]))
        self._begun.clear()

    def _ring(self, alarm: Any) -> None:
        """The flow that ends first, by the rates of when the alarm was set, has ended."""
        number, first = alarm.value
        if number != self._alarm:
            return
        self._advance()
        done = self._left <= _DONE_BYTES
        done[first] = True
        for index in np.flatnonzero(done):
            self._arrive(*self._arrivals[index])
        self._arrivals = [a for a, ended in zip(self._arrivals, done, strict=True) if not ended]
        self._paths, self._left, self._rates = self._paths[~done], self._left[~done], self._rates[~done]
        self._change()

    def _arrive(self, arrival: Any, latency_s: float) -> None:
        if latency_s:
            self._env.timeout(latency_s).callbacks.append(lambda _: arrival.succeed())
        else:
            arrival.succeed()

    def _advance(self) -> None:
        """Bring `_left` up to now."""
        self._left = self._left - self._rates * (self._env.now - self._settled_s)
        self._settled_s = self._env.now
