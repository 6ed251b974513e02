"""Durations of a node's computation: its speed, the random time of a step, and its slow periods."""

from collections.abc import Sequence

import numpy as np

from fdt.network.cluster import ClusterNode


class Pace:
    """The computation of one node. `seed` determines the times of its steps and its slow periods."""

    def __init__(self, node: ClusterNode, step_s: float, seed: Sequence[int]) -> None:
        self._speed, self._slowdowns, self._step_s = node.group.speed, node.group.slowdowns, step_s
        self._steps = np.random.Generator(np.random.PCG64([*seed, node.index, 0]))
        self._changes = np.random.Generator(np.random.PCG64([*seed, node.index, 1]))
        self._slow = True  # so that the first change makes it fast
        self._until_s = 0.0

    def seconds(self, now_s: float, steps: float = 1.0) -> float:
        """Return the seconds that `steps` training steps take from `now_s` on. Calls must be in the order of time."""
        work_s = steps * self._step_s / self._speed.mean
        if self._speed.shape is not None and steps > 0:
            work_s *= float(self._steps.gamma(self._speed.shape, 1 / self._speed.shape))
        return work_s if self._slowdowns is None else self._through_slowdowns(now_s, work_s)

    def _through_slowdowns(self, now_s: float, work_s: float) -> float:
        assert self._slowdowns is not None
        at_s = now_s
        while True:
            self._catch_up(at_s)
            factor = self._slowdowns.factor if self._slow else 1.0
            if at_s + work_s * factor <= self._until_s:
                return at_s + work_s * factor - now_s
            work_s -= (self._until_s - at_s) / factor
            at_s = self._until_s

    def _catch_up(self, now_s: float) -> None:
        """Draw changes until the next one is after `now_s`."""
        assert self._slowdowns is not None
        while self._until_s <= now_s:
            self._slow = not self._slow
            mean_s = self._slowdowns.last_s if self._slow else self._slowdowns.every_s
            self._until_s += float(self._changes.exponential(mean_s))
