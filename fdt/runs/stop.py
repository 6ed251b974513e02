"""The end of a detached run: by SIGINT, then SIGTERM, then SIGKILL."""

import signal
import time

from fdt.runs.follow import POLL_S
from fdt.runs.identity import ProcessIdentity
from fdt.runs.registry import DetachedRun

ASK_S, INSIST_S, END_S = 20.0, 5.0, 5.0  # after SIGINT, after SIGTERM, after SIGKILL


def stop(run: DetachedRun) -> None:
    """End the run's client, which ends all its processes; at last by SIGKILL. Returns when the end is recorded."""
    client = _client(run)
    for number, within_s in ((signal.SIGINT, ASK_S), (signal.SIGTERM, INSIST_S), (signal.SIGKILL, END_S)):
        if client is not None:
            client.signal(number)
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline and not run.over():
            time.sleep(POLL_S)


def _client(run: DetachedRun) -> ProcessIdentity | None:
    """Return the run's client; wait for it where the run was started a moment ago."""
    deadline = time.monotonic() + INSIST_S
    while run.client() is None and not run.over() and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return run.client()
