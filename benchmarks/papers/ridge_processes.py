"""DANE on ridge regression in real processes, which add their vectors through the one that starts them."""

import multiprocessing
import os
import time
from typing import Any, ClassVar
from unittest import mock

import numpy as np

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def in_processes(rows: int, machines: int, rounds: int) -> dict[str, Any]:
    """Run DANE in `machines` processes of one thread that add through this one; return wall time and CPU time.

    Times begin when all processes have their data. `critical_s` is the CPU time of the slowest process and of the
    server: the time where each has a core of its own.
    """
    from benchmarks.papers.quadratic import data

    context, (x, y) = multiprocessing.get_context("spawn"), data(rows)
    pipes = [context.Pipe() for _ in range(machines)]
    parts = zip(np.split(x, machines), np.split(y, machines), strict=True)
    processes = [
        context.Process(target=machine_process, args=(end, part, machines, rounds))
        for (_, end), part in zip(pipes, parts, strict=True)
    ]
    with mock.patch.dict(os.environ, ONE_THREAD):  # read when a process loads NumPy
        for process in processes:
            process.start()
    for pipe, _ in pipes:
        pipe.recv()  # it is ready
    began, began_cpu = time.perf_counter(), time.process_time()
    for pipe, _ in pipes:
        pipe.send(None)
    used = serve([pipe for pipe, _ in pipes])
    wall_s, server_s = time.perf_counter() - began, time.process_time() - began_cpu
    for process, ends in zip(processes, pipes, strict=True):
        process.join()
        for end in ends:
            end.close()
    return {"seconds": round(wall_s, 4), "critical_s": round(max(used) + server_s, 4), "rounds": rounds}


def serve(pipes: list[Any]) -> list[float]:
    """Add what the processes send until they send their CPU seconds; return those."""
    while isinstance((received := [pipe.recv() for pipe in pipes])[0], np.ndarray):
        total = np.sum(received, axis=0)
        for pipe in pipes:
            pipe.send(total)
    return received


def machine_process(pipe: Any, part: Any, machines: int, rounds: int) -> None:
    """Run DANE on one part, in a process of its own; send the CPU seconds at the end."""
    from benchmarks.papers.quadratic import WIDTH, Group, Quadratic, in_rounds
    from hfdt import algorithms

    algorithms.make("dane(solver='cg')")  # its modules are loaded before the clock begins
    pipe.send(None)
    pipe.recv()
    began = time.process_time()

    class Inverted(Quadratic):
        inverses: ClassVar[dict[float, np.ndarray]] = {}  # by mu, which changes once

        def minimum(self, task: Any) -> list[np.ndarray]:
            if task.mu not in self.inverses:
                self.inverses[task.mu] = np.linalg.inv(self.hessian + task.mu * np.eye(WIDTH))
            return [self.inverses[task.mu] @ (self.b + np.asarray(task.linear[0]) + task.mu * self.w0)]

    def add(vector: Any) -> Any:
        pipe.send(vector)
        return pipe.recv()

    in_rounds("dane(solver='cg')", Inverted(*part), Group(machines, add), rounds, np.zeros(WIDTH), lambda w, mu: None)
    pipe.send(time.process_time() - began)
