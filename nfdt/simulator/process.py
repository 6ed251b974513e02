"""Process of a simulation, one for all workers: `python -m nfdt.simulator.process`, started by the engine."""

import os
from pathlib import Path
from typing import Any

from client_shim.resume.randomness import seed_all
from fdt.environment import warm_up
from fdt.job import FeedData, JobSpec
from fdt.network import Cluster, equal_nodes
from fdt.network.reading import read_cluster
from fdt.rpc.session_pb2 import Event, Ready
from fdt.service.member import Member, open_feeds
from nfdt.engine import CLUSTER_VARIABLE, WORKERS_VARIABLE
from nfdt.simulator import SimulationRecord
from nfdt.worker.process import NfdtWorker


class Simulator(NfdtWorker):
    """A worker process that simulates all workers. The simulated clock continues from job to job."""

    def __init__(self, member: Member, cluster: Cluster) -> None:
        super().__init__(member)
        self._cluster, self._clock_s = cluster, 0.0
        self._local: Any = None  # LocalServer
        self._feeds: dict[str, Any] = {}
        self._record = SimulationRecord(len(cluster.workers))

    def _set_up(self, spec: JobSpec, servers: list[str], notes: list[str]) -> None:
        from nfdt.server.local import LocalServer
        from nfdt.simulator.session import SimulatedJob

        seed_all(spec.seed)
        trainable, step = self._build(spec)
        trainable.load(spec.state, self._member.blobs)
        self._local = self._local or LocalServer(self._member.blobs)
        job = self._local.job(spec)
        self._feeds = open_feeds(spec, self._member, lambda wanted: self.send(Event(feed_wanted=wanted)))
        feed = self._feeds.get(spec.data.name) if isinstance(spec.data, FeedData) else None
        given = job, step, trainable, self._cluster, self.send
        run = SimulatedJob(*given, begin_s=self._clock_s, fit=len(self._record.fits), feed=feed)
        self._server = self._run = run
        self._record.fits.append(run.record)
        text = "\n".join(filter(None, [*notes, job.rule.note]))
        ready = Ready(steps_per_epoch=run.steps or 0, notes=text, algorithm=run.record.algorithm)
        self.send(Event(ready=ready))

    def _finish(self) -> None:
        self._clock_s = self._run.now_s
        self._server = None
        self._record.write(self._member.run_dir)
        for feed in self._feeds.values():
            feed.close()


def described_cluster() -> Cluster:
    """Return the cluster that the engine set in the environment."""
    file, workers = os.environ.get(CLUSTER_VARIABLE), os.environ[WORKERS_VARIABLE]
    cluster = read_cluster(Path(file)) if file else equal_nodes()
    return cluster.with_workers(int(workers))


def main() -> None:
    """Run the process of a simulated run until the engine ends it."""
    member = Member.attach("worker")
    warm_up(member.blobs, computes=True)
    import tensorflow as tf

    tf.config.experimental.enable_op_determinism()
    Simulator(member, described_cluster()).run()


if __name__ == "__main__":
    main()
