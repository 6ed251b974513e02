"""One lane's channels to all shards: an exchange with every shard, repeated whole when a server was restored."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from nfdt.model.shards import Ownership
from nfdt.transport.channel import EpochOver, Interrupted, ParameterServerChannel, Release, Weights, WorkerGradient

PATIENCE_S = 600.0  # time for the restoration of a server; the engine ends workers that wait in vain
RETRY_S = 0.1
Pulled = list[Weights] | EpochOver | Release  # the weights of each shard
Result = TypeVar("Result")


class LaneChannels:
    """One lane's channels to all shards.

    A push goes to the other shards before shard 0. Shard 0's answer decides whether they answer. If a session ends, all
    sessions restart and the exchange is repeated whole. A server that has the push already recognises its number; a
    restored server ignores it. Methods raise Interrupted after PATIENCE_S of retries.
    """

    def __init__(self, channels: Sequence[ParameterServerChannel], owned: Sequence[Ownership]) -> None:
        self._first, *self._followers = self.channels = channels
        self._owned = owned
        self._pushes = 0
        self._open = False  # whether every channel is open
        self._retried(lambda: None)

    def ask(self) -> Pulled:
        """Request weights and batches."""
        return self._retried(lambda: self._pull(self._first.ask))

    def end_of_data(self, batch: int) -> Pulled:
        """Report that batch `batch` does not exist; request weights and batches."""
        return self._retried(lambda: self._pull(lambda: self._first.end_of_data(batch)))

    def push(self, gradient: WorkerGradient) -> Pulled:
        """Push a gradient of all variables. The answer is that of the next pull."""
        self._pushes += 1
        return self._retried(lambda: self._push(self._pushes, [_part(gradient, shard) for shard in self._owned]))

    def close(self) -> None:
        """End all sessions."""
        for channel in self.channels:
            channel.close()

    def _push(self, number: int, parts: Sequence[WorkerGradient]) -> Pulled:
        for channel, part in zip(self._followers, parts[1:], strict=True):
            channel.push(number, part)
            if channel.answer() is not None:
                raise RuntimeError("a server other than the first did not store a push")
        return self._pull(lambda: self._first.push(number, parts[0]))

    def _pull(self, request: Callable[[], None]) -> Pulled:
        """Send `request` to shard 0, and let the other shards answer as it does."""
        request()
        answer = self._first.answer()
        if not isinstance(answer, Weights):
            assert answer is not None, "shard 0 stages nothing"
            return answer
        pulled = [answer]
        for channel in self._followers:
            channel.ask(answer.pull)
            part = channel.answer()
            assert isinstance(part, Weights), "a shard that follows answers as shard 0 does"
            pulled.append(part)
        return pulled

    def _retried(self, exchange: Callable[[], Result]) -> Result:
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                for channel in () if self._open else self.channels:
                    channel.open()
                self._open = True
                return exchange()
            except Interrupted:
                if time.monotonic() > until:
                    raise
                self._open = False
                time.sleep(RETRY_S)


def _part(gradient: WorkerGradient, shard: Ownership) -> WorkerGradient:
    """Return the part of a gradient of all variables that belongs to one shard."""
    change_of = dict(zip(gradient.changed, gradient.changes, strict=True))
    mine = [(i, other) for i, other in enumerate(shard.others) if other in change_of]
    tensors, changes = [gradient.gradient[i] for i in shard.trainable], [change_of[other] for _, other in mine]
    return replace(gradient, gradient=tensors, changes=changes, changed=[i for i, _ in mine])
