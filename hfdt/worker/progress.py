"""What a rank does between the steps of an epoch, besides training."""

import time
from typing import Any

from fdt.job import BatchHooks

PROGRESS_S = 0.2  # between two Progress events


class Watch:
    """Looks at an epoch's steps: counts them, speaks now and then, commits, or waits at each in lock step.

    `worker`: a hfdt.worker.process.HfdtWorker. `before`: steps of the epoch that were done when it was taken up.
    """

    def __init__(self, worker: Any, epoch: int, before: int = 0) -> None:
        self._worker, self._epoch, self._before = worker, epoch, before
        spec = worker.job.spec
        self._lock_step = spec.fit.batch_hooks != BatchHooks.NONE
        self._every = worker.job.commits_every
        self._next = time.monotonic()
        self.steps = before

    def on_batch(self, step: int, logs: Any) -> bool:
        """After steps [.., step]; False stops the epoch. Keras counts a last execution's steps as if all were there."""
        total = self._worker.job.session.epoch_steps
        last, self.steps = self.steps, min(self._before + step + 1, total or self._before + step + 1)
        self._worker.job.session.check_finite(self._epoch)
        if self._lock_step:
            return bool(self._worker.lock_step(self.steps, logs))
        if self._every and self.steps // self._every > last // self._every and self.steps != total:
            self._worker.commit(self._epoch, self.steps, logs)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PROGRESS_S
            self._worker.progress(self._epoch, self.steps, logs)
        return True
