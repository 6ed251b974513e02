"""Runs of tf.distribute: the same script once for each task of a cluster, which TF_CONFIG names."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence

import harness

from fdt.service.transport import free_ports


def addresses(count: int) -> list[str]:
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


def run(argv: Sequence[str], cluster: Mapping[str, Sequence[str]], threads: Mapping[str, str]) -> harness.Run:
    """Run the cluster; return the run of its first task, which reports. The other tasks are ended with it."""
    first, *others = [(kind, index) for kind, tasks in cluster.items() for index in range(len(tasks))]

    def env(kind: str, index: int) -> Mapping[str, str]:
        return {**threads, "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}

    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    beside = [subprocess.Popen(argv, env={**os.environ, **harness.QUIET, **env(*task)}, **silent) for task in others]
    try:
        return harness.run(argv, env(*first))
    finally:
        for popen in beside:
            harness.end(popen)
