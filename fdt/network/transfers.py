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
        self._capacity = np.array([link.bandwidth for link in topology.channels] + [np.inf])
        self.carried = np.zeros(len(topology.channels), np.int64)
        self._paths = np.empty((0, 1), np.int64)
        self._left = np.empty(0)  # bytes of each flow
        self._rates = np.empty(0)
        self._arrivals: list[tuple[Any, float]] = []  # of each flow: its event, its latency
        self._settled_s = env.now  # until when `_left` is right
        self._alarm = 0  # only the latest set counts
        self._stale = False

    def send(self, route: Route, nbytes: float) -> Any:
        """An event that happens when the last byte has arrived."""
        channels = np.array(route.channels, np.int64)
        self.carried[channels] += int(nbytes)
        arrival = self._env.event()
        if nbytes <= 0 or not np.isfinite(self._capacity[channels]).any():
            return self._env.timeout(route.latency_s)
        self._advance()
        self._add(channels, nbytes)
        self._arrivals.append((arrival, route.latency_s))
        self._change()
        return arrival

    def _add(self, channels: Any, nbytes: float) -> None:
        width = max(self._paths.shape[1], len(channels))
        paths = np.full((len(self._left) + 1, width), len(self._capacity) - 1)
        paths[:-1, : self._paths.shape[1]] = self._paths
        paths[-1, : len(channels)] = channels
        self._paths = paths
        self._left = np.append(self._left, float(nbytes))
        self._rates = np.append(self._rates, 0.0)

    def _change(self) -> None:
        """New rates, once for all that happens at this instant."""
        if not self._stale:
            self._stale = True
            self._env.timeout(0).callbacks.append(self._share)

    def _share(self, _: Any) -> None:
        self._stale = False
        self._rates = fair_rates(self._capacity, self._paths)
        self._alarm += 1
        if len(self._left):
            self._env.timeout(float((self._left / self._rates).min()), self._alarm).callbacks.append(self._ring)

    def _ring(self, alarm: Any) -> None:
        """The flow that ends first, by the rates of when the alarm was set, has ended."""
        if alarm.value != self._alarm:
            return
        first = int((self._left / self._rates).argmin())
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
