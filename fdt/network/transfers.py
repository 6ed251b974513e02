"""Transfers of tensors on a simulated clock.

A transfer is a flow over the channels of its route. Flows share each channel by max-min fairness (fair_sharing.py), so
rates change whenever one begins or ends. The last byte arrives the route's latency after it was sent. No byte is lost
or sent again, and protocol overhead is not counted.

A channel whose flows could not exceed its bandwidth together slows none of them. A flow over such channels only keeps
its full rate whichever other flows begin or end, and needs one event, its end. Most flows of most clusters are like
that. contended.py computes the others.
"""

from math import inf
from typing import Any

import simpy

from fdt.network.contended import Contended, Flow
from fdt.network.topology import Route, Topology


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
