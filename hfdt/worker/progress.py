"""The work of a rank between the steps of an epoch: progress, commits and lock step."""

import time
from typing import Any

from fdt.job import BatchHooks

PROGRESS_S = 0.2  # seconds between two Progress events


class Watch:
    """A step callback of an epoch, which counts steps, sends progress, commits, and waits for the client in lock step.

    Args:
        worker: A hfdt.worker.process.HfdtWorker.
        epoch: The epoch, from 0.
        before: Steps of the epoch that were done before it resumed.
    """

    def __init__(self, worker: Any, epoch: int, before: int = 0) -> None:
        self._worker, self._epoch, self._before = worker, epoch, before
        spec = worker.job.spec
        self._lock_step = spec.fit.batch_hooks != BatchHooks.NONE
        self._every = worker.job.commits_every
        self._next = time.monotonic()
        self.steps = before

    def on_batch(self, step: int, logs: Any) -> bool:
        """Handle the steps up to index `step`; return False to stop the epoch.

        Keras counts the steps of an epoch's last execution as if it were complete, hence the bound by `total`.
        """
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
