"""Process groups whose ranks are threads of one process."""

import json
from typing import Any

from fdt.process_group import Collectives, Combined
from tests.in_process_comm import InProcessComm


class MemoryGroup(Collectives):
    """The collectives, in memory, of ranks that `on_ranks` runs.

    `comm`: the rank's, once it runs. `names`: of its collectives.
    """

    def __init__(self, rank: int, size: int, comm: InProcessComm | None = None) -> None:
        self.rank, self.size, self.comm, self.names = rank, size, comm, list[str]()

    def broadcast(self, value: Any, name: str) -> Any:
        """Implement ReplicaGroup."""
        return json.loads(json.dumps(self._round(name, value)[0]))

    def _whole(self, combined: Combined, name: str) -> Any:
        self.names.append(name)
        self.sent_bytes += combined.vector.nbytes
        return combined.of(self._round(f"{name} {len(combined.whole)} {combined.kind}", combined.vector))

    def _round(self, wanted: str, value: Any) -> list[Any]:
        assert self.comm is not None
        world = self.comm._world
        world.names[self.rank], world.vectors[self.rank] = wanted, value
        world.barrier.wait(world.wait_s)
        assert len(set(world.names)) == 1, f"all ranks must be at the same collective. Received: {world.names}"
        given = list(world.vectors)
        world.barrier.wait(world.wait_s)
        return given
