"""When the processes of a run ended on the hosts that were not cut off."""

import time
from pathlib import Path

import psutil
from aftermath import Aftermath

CUT_OFF = "host3"


class Survivors:
    """The run's processes on the other hosts of Aftermath.hosts; none where it has none."""

    def __init__(self, traces: Aftermath) -> None:
        self._traces = traces
        pids = traces.hosts.pids if traces.hosts is not None else {}
        names = {_network_of(pid): name for name, pid in pids.items() if name != CUT_OFF}
        self._living: dict[str, list[psutil.Process]] = {name: [] for name in names.values()}
        self._ended: dict[str, float] = {}
        for process in traces.processes() if names else ():
            if (name := names.get(_network_of(process.pid))) is not None:
                self._living[name].append(process)

    def look(self) -> None:
        """Note which hosts have none of the processes any more."""
        living = self._traces.processes() if self._living else []
        for name, processes in list(self._living.items()):
            if not any(process in living for process in processes):
                self._ended[name] = time.monotonic()
                del self._living[name]

    def wait(self, within_s: float) -> None:
        """Wait until all have ended. A host where some live after `within_s` counts as ended then."""
        deadline = time.monotonic() + within_s
        while self._living and time.monotonic() < deadline:
            time.sleep(0.05)
            self.look()
        self._ended.update(dict.fromkeys(self._living, time.monotonic()))

    def seconds_after(self, begun: float) -> dict[str, float]:
        """Return the seconds from `begun` to each host's end."""
        return {name: ended - begun for name, ended in sorted(self._ended.items())}


def _network_of(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:  # it has ended
        return ""
