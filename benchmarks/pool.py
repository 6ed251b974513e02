"""50 clients give a pool 200 small jobs, some of which are killed, slow or malformed.

Is every right job right, and does the server lose no memory, file, process or slot? The jobs are one recorded `fit`
(scripts/pool_fit.py), given by client processes without TensorFlow (scripts/pool_client.py); the pool's workers are
real. A job is right when its last loss is that of the script alone.
"""

import argparse
import contextlib
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from harness import QUIET, SCRIPTS, conclude, console, keep, kept, machine, table
from soak import anonymous_mb, is_flat, slope

from fdt.blobs import LocalBlobs
from fdt.rpc.session_pb2 import Command, Event, Failed, Setup
from fdt.service.server import serve
from fdt.supervise.outcome import blobs_in

TOKEN, SCRIPT, CLIENT = "load", SCRIPTS / "pool_fit.py", SCRIPTS / "pool_client.py"
KINDS = {"right": 72, "slow": 8, "killed": 10, "cancelled by the client": 4, "malformed": 6}  # in 100 jobs
NOT_JOBS = ("no blobs", "not a program", "too many slots", "no such priority", "an epoch first", "wrong token")
TOLERANCE = 1e-5
LONG_MIN = 5.0  # a shorter run says nothing of a leak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="hfdt", choices=["hfdt", "nfdt"])
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--slots", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0, help="kill the clients then; other jobs are not run")
    parser.add_argument("--out", type=Path, help="add what was measured there, a JSON line for each run")
    parser.add_argument("--table", type=Path, metavar="OUT", help="print the runs of that file, and run nothing")
    given = parser.parse_args()
    if given.table:
        for entry in kept(given.table):
            report(entry)
        return 0
    with tempfile.TemporaryDirectory(prefix="pool-") as directory:
        entry = measured(given, Path(directory))
    keep(given.out, entry)
    return 0 if report(entry) else 1


# -- the recorded job -------------------------------------------------------------------------------------------------
class Recorder:
    """An engine that keeps a job and trains nothing."""

    name, workers = "", 1

    def __init__(self, engine: str, directory: Path) -> None:
        self.name, self.run_dir, self.blobs = engine, directory, LocalBlobs.create()
        self.setup, self.contents = Setup(), {}

    def train(self, commands: Iterator[Command]) -> Iterator[Event]:
        self.setup = next(iter(commands)).setup
        self.contents = {ref.id: bytes(self.blobs.get(ref)) for ref in blobs_in(self.setup) if ref.id}
        yield Event(failed=Failed(message="recorded"))


def record(engine: str, directory: Path) -> float:
    """Write the script's job to directory/job; return the last loss of the script alone."""
    recorder = Recorder(engine, directory)
    running = serve(recorder, f"unix:{directory}/recorder", TOKEN)
    argv = [sys.executable, "-m", engine, "run", "--server", running.address, str(SCRIPT)]
    subprocess.run(argv, env={**os.environ, **QUIET, "FDT_TOKEN": TOKEN}, capture_output=True)
    running.stop()
    recorder.blobs.close()
    (directory / "job").write_bytes(pickle.dumps((recorder.setup.SerializeToString(), recorder.contents)))
    alone = subprocess.run([sys.executable, str(SCRIPT)], env={**os.environ, **QUIET}, capture_output=True, text=True)
    return float(alone.stdout.split("loss ")[1])


# -- the load ---------------------------------------------------------------------------------------------------------
def plan(jobs: int, slots: int, seed: int) -> list[dict[str, Any]]:
    """Return the jobs: their kinds in a shuffled order, one of twenty on two slots."""
    chance = random.Random(seed)
    kinds = [kind for kind, share in KINDS.items() for _ in range(round(share * jobs / 100))]
    chance.shuffle(kinds)
    hows = [chance.choice(NOT_JOBS) if kind == "malformed" else kind for kind in kinds]
    wide = min(2, slots)
    return [
        {"id": n, "kind": kind, "how": how, "slots": wide if n % 20 == 0 else 1}
        for n, (kind, how) in enumerate(zip(kinds, hows, strict=True))
    ]


def measured(given: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Run the load; return what was measured."""
    console.print("  recording the job ...", style="dim")
    alone = record(given.engine, directory)
    address = f"unix:{directory}/pool.sock"
    argv = [sys.executable, "-m", given.engine, "serve", "-np", str(given.slots), "--socket", f"{directory}/pool.sock"]
    with open(directory / "serve.log", "w") as log:
        environment = {**os.environ, **QUIET, "FDT_TOKEN": TOKEN}
        server = psutil.Popen([*argv, "--log-dir", str(directory / "logs")], env=environment, stdout=log, stderr=log)
    jobs = plan(given.jobs, given.slots, given.seed)
    begun = time.monotonic()
    try:
        while "to train on it" not in (directory / "serve.log").read_text() and server.poll() is None:
            time.sleep(0.2)
        load = Clients(given.clients, jobs, address, directory)
        store = store_of(server)
        samples, said = load.run(server, store, given.minutes), load.said
        idle = settled(server, address, store)
    finally:
        server.terminate()
        code = server.wait(60)
    time.sleep(2)  # the shm reaper is a process of its own
    left = left_of(store)
    verdicts = Counter(f"{job['kind']}: {verdict(job, said.get(job['id'], {}), alone)}" for job in jobs)
    wrong = [(job, said.get(job["id"])) for job in jobs if verdict(job, said.get(job["id"], {}), alone) == "WRONG"]
    return {
        "at": machine(),
        **{name: getattr(given, name) for name in ("engine", "clients", "jobs", "slots", "seed")},
        "seconds": time.monotonic() - begun,
        "verdicts": dict(sorted(verdicts.items())),
        "wrong": wrong,
        "seconds_of_jobs": sorted(s["seconds"] for s in said.values() if "loss" in s),
        "samples": samples,
        "idle": idle,
        "code": code,
        "left": left,
    }


def verdict(job: dict[str, Any], said: dict[str, Any], alone: float) -> str:
    """Return how a job came out; "WRONG" where that is not as it must be."""
    if not said:
        return "not run"
    right = "loss" in said and abs(said["loss"] - alone) <= TOLERANCE * abs(alone)
    if job["kind"] in ("right", "slow"):
        return "right" if right else "WRONG"
    if job["kind"] == "killed":
        return "right, before the kill" if right else "killed" if "killed" in said else "WRONG"
    return "refused" if job["kind"] == "malformed" and "error" in said else "ended" if "error" in said else "WRONG"


class Clients:
    """The client processes. `said`: what they printed of each job that has ended, by its number."""

    def __init__(self, count: int, jobs: list[dict[str, Any]], address: str, directory: Path) -> None:
        self.said: dict[int, dict[str, Any]] = {}
        self._shares = [jobs[n::count] for n in range(count)]
        self._address, self._directory = address, directory
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def run(self, server: psutil.Process, store: str, minutes: float) -> list[dict[str, float]]:
        """Run them to their end, or kill them after so many minutes; return the measurements meanwhile."""
        begun, samples = time.monotonic(), []
        try:
            for n, share in enumerate(self._shares):
                self._start(n, share)
                time.sleep(0.2)
            while self._running and time.monotonic() < begun + 60 * minutes:
                samples.append(
                    {"minute": (time.monotonic() - begun) / 60, "done": len(self.said), **resources(server, store)}
                )
                for n in list(self._running):
                    self._look(n)
                time.sleep(2)
        finally:
            for process in self._running.values():
                process.kill()
                process.wait()
        return samples

    def _look(self, n: int) -> None:
        """Take what a client said; start it again where it was killed and has jobs left."""
        killed = self._running[n].poll() == -signal.SIGKILL
        said = (self._directory / f"client-{n}").read_text()
        lines = [json.loads(line) for line in said.splitlines() if line.endswith("}")]
        self.said |= {line["job"]: line for line in lines if not line.get("begins")}
        if self._running[n].poll() is None:
            return
        del self._running[n]
        if killed and lines[-1].get("begins"):
            self.said[lines[-1]["job"]] = {"killed": True}
        rest = [job for job in self._shares[n] if job["id"] not in self.said]
        if rest and killed:
            self._start(n, rest)

    def _start(self, n: int, jobs: Sequence[dict[str, Any]]) -> None:
        argv = [sys.executable, str(CLIENT), self._address, str(self._directory), str(n), json.dumps(jobs)]
        with open(self._directory / f"client-{n}", "a") as out:
            environment = {**os.environ, **QUIET, "FDT_TOKEN": TOKEN}
            self._running[n] = subprocess.Popen(argv, stdout=out, stderr=subprocess.DEVNULL, env=environment)


# -- what it costs ----------------------------------------------------------------------------------------------------
def resources(server: psutil.Process, store: str) -> dict[str, float]:
    """Return what the server holds: memory, files, threads, processes, the blobs of its store."""
    held = {"memory, MB": anonymous_mb(server), "open files": server.num_fds(), "threads": server.num_threads()}
    files = [file for file in Path(store).rglob("*") if not file.name.startswith((".", "__autograph"))]
    return {**held, "processes": len(server.children(recursive=True)), "files of the store": len(files)}


def store_of(server: psutil.Process) -> str:
    """Return the directory of the server's store, which its shm reaper is given."""
    while True:
        for child in server.children():
            with contextlib.suppress(psutil.Error):  # it has just ended
                argv = child.cmdline()
                if len(argv) > 4 and argv[-3].endswith("shm_reaper.py"):
                    return argv[-2]
        time.sleep(0.2)


def settled(server: psutil.Process, address: str, store: str) -> dict[str, Any]:
    """Wait until the pool is idle; return its free slots and what it holds then."""
    os.environ["FDT_TOKEN"] = TOKEN
    argv = [sys.executable, "-m", "hfdt", "queue", "--server", address, "--json"]  # of either engine
    deadline = time.monotonic() + 60
    while True:
        queue = json.loads(subprocess.run(argv, capture_output=True, text=True).stdout)
        if not queue["jobs"] or time.monotonic() > deadline:
            return {"free": queue["free"], "jobs": len(queue["jobs"]), **resources(server, store)}
        time.sleep(1)


def left_of(store: str) -> dict[str, int]:
    """Return what is left of a server that has ended: its store, and processes that were started with it."""
    return {"stores": int(Path(store).exists()), "processes": sum(store in named(p) for p in psutil.process_iter())}


def named(process: psutil.Process) -> str:
    """Return the variables and arguments of a process; "" where it is a zombie or another user's."""
    try:
        return str((process.environ(), process.cmdline()))
    except psutil.Error:
        return ""


def report(entry: dict[str, Any]) -> bool:
    """Print one run; return whether all is as it must be."""
    shape = "{engine}, {clients} clients, {jobs} jobs, {slots} slots, seed {seed}".format(**entry)
    console.print(f"{entry['at']}: {shape}: {entry['seconds']:.0f} s")
    table("jobs", ["job: how it came out", "number"], [[k, str(v)] for k, v in entry["verdicts"].items()])
    samples = [s for s in entry["samples"] if s["done"] >= entry["samples"][-1]["done"] / 4]
    rows, flat = [], True
    for name in ("memory, MB", "open files", "threads", "processes", "files of the store"):
        values = [s[name] for s in samples]
        rate, error = slope([s["minute"] for s in samples], values)
        numbers = (values[0], values[-1], max(values), entry["idle"][name])
        if name == "memory, MB" and samples[-1]["minute"] - samples[0]["minute"] >= LONG_MIN:
            flat = is_flat(rate)
        rows.append([name, *(f"{value:.1f}" for value in numbers), f"{rate:+.2f} ± {error:.2f}"])
    table("the server, after a quarter of the jobs", ["", "first", "last", "largest", "idle", "a minute"], rows)
    seconds = entry["seconds_of_jobs"]
    console.print(f"a right job took {seconds[len(seconds) // 2]:.0f} s (median), {seconds[-1]:.0f} s (longest)")
    console.print(f"at the end: {entry['idle']['free']} of {entry['slots']} slots free; left behind: {entry['left']}")
    for job, said in entry["wrong"]:
        console.print(f"WRONG: {job}: {said}")
    idle = entry["idle"]["free"] == entry["slots"] and not entry["idle"]["jobs"]
    return bool(
        not entry["wrong"]
        and not any("not run" in how for how in entry["verdicts"])
        and idle
        and not any(entry["left"].values())
        and flat
        and entry["code"] == 0
    )


if __name__ == "__main__":
    conclude(main)
