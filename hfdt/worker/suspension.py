"""The agreement of ranks on the step after which they commit the state and end the epoch, because the run is preempted.

A rank learns of the preemption at any time (fdt/service/member.py). All ranks must stop after the same step, so now and
then they sum what they know, always after the same number of steps. Rank 0's clock decides how many steps lie between
two such votes, and each vote tells the others. No traced step changes, and a vote costs one small exchange.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imports TensorFlow, which a rank imports after it has attached
    from hfdt.collectives import Comm

PERIOD_S = 0.5  # between two votes
GROWTH = 8  # the most by which the number of steps between two votes grows: the first steps are traced, thus slow


class SuspensionVote:
    """The votes of one rank in one job. `wanted`: whether this rank received a preemption."""

    def __init__(self, comm: "Comm", wanted: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._comm, self._wanted, self._clock = comm, wanted, clock
        self._between, self._done = 1, 0  # steps between votes, and since the last vote
        self._voted_at = clock()

    def agreed(self, steps: int) -> bool:
        """Count `steps` more steps. Return whether all ranks stop here. A collective: all ranks count alike."""
        if self._comm.size == 1:
            return self._wanted()
        self._done += steps
        if self._done < self._between:
            return False
        import tensorflow as tf

        mine = [int(self._wanted()), self._proposal() if self._comm.rank == 0 else 0]
        asking, self._between = (int(n) for n in self._comm.sum([tf.constant(mine, tf.int64)], "hfdt.suspend")[0])
        self._done, self._voted_at = 0, self._clock()
        return asking > 0

    def _proposal(self) -> int:
        """Return the number of steps to the next vote, which should begin after PERIOD_S."""
        seconds = max(self._clock() - self._voted_at, 1e-6)
        return max(1, min(int(self._done * PERIOD_S / seconds), self._between * GROWTH))
