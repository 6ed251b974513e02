"""The seconds of a batch under NFDT's algorithms on a described cluster, without a model.

NFDT's own scheduler and algorithms decide who waits, whose gradient is dropped and when. The weights are one number, so
a run of some hundred batches takes a fraction of a second. Pushes and pulls take the links of the cluster.
"""

import importlib
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import simpy

from fdt.network import Cluster, Pace
from fdt.network.topology import SERVER, topology_of
from fdt.network.transfers import Transfers

Events = Generator[Any, Any, None]
ONE = np.ones(1, np.float32)


class OneNumber:
    """An Applier (nfdt/server/algorithm_state.py) whose weights are one number that no update changes."""

    def __init__(self) -> None:
        self._algorithm = importlib.import_module("nfdt.algorithm")

    def init(self, rule: Any, workers: int) -> tuple[Any, Any]:
        """Return the initial states."""
        return tuple(rule.init([ONE], workers))

    def pull(self, rule: Any, shared: Any, mine: Any, worker: int) -> tuple[Any, Any, Any]:
        """Return what is sent, None where the worker must wait, and the states."""
        return tuple(rule.pull(shared, mine, [ONE], self._algorithm.Hyper(worker, ONE[0], ONE[0])))

    def push(self, rule: Any, shared: Any, mine: Any, worker: int, gradient: Any, tau: int) -> tuple[bool, Any, Any]:
        """Return whether the push leads to an update, and the states."""
        number = np.float32(gradient.samples)
        pushed = self._algorithm.Push(
            worker, [ONE], np.float32(tau), number, ONE[0], ONE[0], [ONE], gradient.seconds, len(gradient.batches)
        )
        with np.errstate(all="ignore"):
            update, shared, mine = rule.push(shared, mine, [ONE], pushed)
        return update is not None, shared, mine

    def flush(self, rule: Any, shared: Any) -> tuple[bool, Any]:
        """Return whether held pushes lead to an update, and the state."""
        update, shared = rule.flush(shared, [ONE])
        return update is not None, shared


class PushRun:
    """Workers that ask, compute and push on a simulated clock.

    Args:
        cluster: Nodes and links.
        algorithm: NFDT's algorithm.
        batches: Batches of an epoch.
        nbytes: Bytes of a push, and of a pull.
        seed: Determines the times of steps.
        applier: Holds the weights; None: OneNumber.
    """

    def __init__(
        self, cluster: Cluster, algorithm: str, batches: int, nbytes: float, seed: int, applier: Any = None
    ) -> None:
        self._env, self._nbytes, self._workers = simpy.Environment(), nbytes, cluster.workers
        self._topology = topology_of(cluster)
        self._transfers = Transfers(self._env, self._topology)
        self._paces = [Pace(node, cluster.step_s, (seed,)) for node in self._workers]
        self._replies = [simpy.Store(self._env) for _ in self._workers]
        self.rule = importlib.import_module("nfdt.algorithms").make(algorithm)
        state = importlib.import_module("nfdt.server.algorithm_state").AlgorithmState
        self._channel = importlib.import_module("nfdt.transport")
        self._instructions = importlib.import_module("nfdt.server")
        scheduler = importlib.import_module("nfdt.server.scheduler").Scheduler
        self._scheduler = scheduler(state(self.rule, applier or OneNumber(), len(self._workers)), batches)
        self._done = 0

    @property
    def now_s(self) -> float:
        """The simulated time in seconds."""
        return float(self._env.now)

    def gradient(self, worker: int, epoch: int, batches: Sequence[int], weights: Any, seconds: float) -> Any:
        """Return a worker's push: one number instead of a gradient, as no model is trained."""
        return self._channel.WorkerGradient([ONE], len(batches), seconds, batches=batches)

    def pushed(self, batches: int, tau: int) -> None:
        """Do nothing after a push. `batches`: done in all; `tau`: its staleness."""

    def seconds(self, epochs: int) -> float:
        """Return the simulated seconds of `epochs` passes over the data."""
        for epoch in range(epochs):
            self._handle(self._scheduler.start_epoch(epoch))
            running = [self._env.process(self._worker(k)) for k in range(len(self._workers))]
            self._env.run(simpy.AllOf(self._env, running))
        return self.now_s

    def _handle(self, instructions: Sequence[Any]) -> None:
        for each in instructions:
            if not isinstance(each, self._instructions.EpochDone):
                self._replies[each.worker].put(each)

    def _worker(self, k: int) -> Events:
        up, down = (self._topology.route(*ends) for ends in ((self._place(k), SERVER), (SERVER, self._place(k))))
        pushes = self._scheduler.state.worker_states[k].last_push
        yield self._env.timeout(up.latency_s)
        self._handle(self._scheduler.ask(k))
        while isinstance(reply := (yield self._replies[k].get()), self._instructions.Send):
            yield self._transfers.send(down, self._nbytes)
            taken = self._paces[k].seconds_of(len(reply.batches), self._env.now)
            yield self._env.timeout(taken)
            yield self._transfers.send(up, self._nbytes)
            pushes += 1
            self._push(k, pushes, self.gradient(k, reply.epoch, reply.batches, reply.sent, taken))
        yield self._env.timeout(down.latency_s)

    def _push(self, k: int, number: int, gradient: Any) -> None:
        self._done += len(gradient.batches)
        self._handle(self._scheduler.push(k, number, gradient))
        self.pushed(self._done, self._scheduler.state.worker_states[k].staleness)

    def _place(self, k: int) -> int:
        return self._workers[k].index
