"""50 clients of three users give a pool 200 small jobs, some of which are killed, slow or malformed.

Is every right job right, and does the server lose no memory, file, process or slot? The jobs are one recorded `fit`
(scripts/pool_fit.py), given by client processes without TensorFlow (scripts/pool_client.py); the pool's workers are
real. A job is right when its last loss is that of the script alone. Users have certificates and a quota, jobs their
priorities. Every few seconds a worker of the pool is killed: its job must end with that error, or be right where its
--restarts replace the worker.
"""

import argparse
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

from harness import QUIET, SCRIPTS, conclude, console, keep, kept, machine, table
from pool_server import TOKEN, USERS, Server
from soak import is_flat, slope

from fdt.blobs import LocalBlobs
from fdt.rpc.session_pb2 import Command, Event, Failed, Setup
from fdt.service.server import serve
from fdt.supervise import blobs_in

SCRIPT, CLIENT = SCRIPTS / "pool_fit.py", SCRIPTS / "pool_client.py"
KINDS = {"right": 72, "slow": 8, "killed": 10, "cancelled by the client": 4, "malformed": 6}  # in 100 jobs
NOT_JOBS = ("no blobs", "not a program", "too many slots", "no such priority", "an epoch first", "wrong token")
ABOVE_0 = "a priority above 0"  # malformed, unless the user is an administrator
TOLERANCE, ASYNCHRONOUS = 1e-5, 0.5  # of the last loss; of NFDT's on two workers, whose steps are one update late
LOST = ("was lost: signal 9", "was lost: mpirun ended with exit code 137")  # 128 + 9
LONG_MIN = 5.0  # a shorter run says nothing of a leak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="hfdt", choices=["hfdt", "nfdt"])
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--slots", type=int, default=3)
    parser.add_argument("--quota", type=int, default=2, help="slots of each user")
    parser.add_argument("--kill-every", type=float, default=10.0, help="seconds between two killed workers")
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
def user_of(job: dict[str, Any], clients: int) -> str:
    """Return the user of the client that gives the job."""
    return USERS[job["id"] % clients % len(USERS)]


def plan(jobs: int, slots: int, clients: int, seed: int) -> list[dict[str, Any]]:
    """Return the jobs: kinds in a shuffled order, one of twenty on two slots, half of them with --restarts."""
    chance = random.Random(seed)
    kinds = [kind for kind, share in KINDS.items() for _ in range(round(share * jobs / 100))]
    chance.shuffle(kinds)
    wide, planned = min(2, slots), []
    for n, kind in enumerate(kinds):
        job = {"id": n, "kind": kind, "how": kind, "slots": wide if n % 20 == 0 else 1}
        administers = user_of(job, clients) == USERS[-1]
        if kind == "malformed":
            job["how"] = chance.choice(NOT_JOBS if administers else (*NOT_JOBS, ABOVE_0))
        job["priority"] = 5 if job["how"] == ABOVE_0 else chance.choice((-5, 0, 0, 5 if administers else 0))
        planned.append({**job, "restarts": chance.choice((0, 3))})
    return planned


def measured(given: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Run the load; return what was measured."""
    console.print("  recording the job ...", style="dim")
    alone = record(given.engine, directory)
    server = Server(given.engine, given.slots, given.quota, directory)
    jobs = plan(given.jobs, given.slots, given.clients, given.seed)
    begun = time.monotonic()
    try:
        server.await_ready()
        load = Clients(given.clients, jobs, server, directory)
        load.run(given.minutes, given.kill_every)
        idle = server.settled()
    finally:
        code = server.stop()
    time.sleep(2)  # the shm reaper is a process of its own
    said = load.said
    verdicts = {job["id"]: verdict(given.engine, job, said.get(job["id"], {}), alone) for job in jobs}
    counted = Counter(f"{job['kind']}: {verdicts[job['id']]}" for job in jobs)
    return {
        "at": machine(),
        **{name: getattr(given, name) for name in ("engine", "clients", "jobs", "slots", "seed", "quota")},
        "seconds": time.monotonic() - begun,
        "verdicts": dict(sorted(counted.items())),
        "wrong": [(job, said.get(job["id"])) for job in jobs if verdicts[job["id"]] == "WRONG"],
        "seconds_of_jobs": sorted(s["seconds"] for s in said.values() if "loss" in s),
        "kills": load.kills,
        "users": load.users,
        "samples": load.samples,
        "idle": idle,
        "code": code,
        "left": server.left(),
    }


def verdict(engine: str, job: dict[str, Any], said: dict[str, Any], alone: float) -> str:
    """Return how a job came out; "WRONG" where that is not as it must be."""
    if not said:
        return "not run"
    within = ASYNCHRONOUS if engine == "nfdt" and job["slots"] > 1 else TOLERANCE
    right = "loss" in said and abs(said["loss"] - alone) <= within * abs(alone)
    # The server of NFDT's only worker is in the worker's process.
    replaced = job["restarts"] if engine == "hfdt" or job["slots"] > 1 else 0
    lost = any(words in said.get("error", "") for words in LOST) and said["faults"] == replaced
    if job["kind"] in ("right", "slow"):
        with_restart = ", after a restart" if said.get("faults") else ""
        return f"right{with_restart}" if right else "lost with its worker" if lost else "WRONG"
    if job["kind"] == "killed":
        return "right, before the kill" if right else "killed" if "killed" in said else "ended" if lost else "WRONG"
    return "refused" if job["kind"] == "malformed" and "error" in said else "ended" if "error" in said else "WRONG"


class Clients:
    """The client processes.

    Attributes:
        said: What they printed of each job that has ended, by its number.
        kills: How many workers were killed meanwhile.
        users: By user, the most slots that its running jobs had together, and how often a job waited for its quota.
        samples: The measurements meanwhile.
    """

    def __init__(self, count: int, jobs: list[dict[str, Any]], server: Server, directory: Path) -> None:
        self.said: dict[int, dict[str, Any]] = {}
        self.kills, self.users, self.samples = 0, {user: [0, 0] for user in USERS}, list[dict[str, float]]()
        self._shares = [jobs[n::count] for n in range(count)]
        self._server, self._directory = server, directory
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def run(self, minutes: float, kill_every_s: float) -> None:
        """Run them to their end, or kill them after so many minutes."""
        begun, chance = time.monotonic(), random.Random(len(self._shares))
        until, next_kill = begun + 60 * minutes, begun + kill_every_s
        try:
            for n, share in enumerate(self._shares):
                self._start(n, share)
                time.sleep(0.2)
            while self._running and time.monotonic() < until:
                if time.monotonic() > next_kill:
                    self.kills, next_kill = self.kills + self._server.kill_worker(chance), next_kill + kill_every_s
                now = (time.monotonic() - begun) / 60
                self.samples.append({"minute": now, "done": len(self.said), **self._server.resources()})
                self._see_users()
                for n in list(self._running):
                    self._look(n)
                time.sleep(2)
        finally:
            for process in self._running.values():
                process.kill()
                process.wait()

    def _see_users(self) -> None:
        """Record the slots of each user. A job begins its name with its number."""
        slots = Counter[str]()
        for job in self._server.queue().jobs:
            if job.user != user_of({"id": int(job.name.split()[0])}, len(self._shares)):
                raise RuntimeError(f"a job has another's user: {job}")
            slots[job.user] += job.slots * (job.state == "RUNNING")
            self.users[job.user][1] += job.reason == "Quota"
        for user, now in slots.items():
            self.users[user][0] = max(self.users[user][0], now)

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
        user = user_of(jobs[0], len(self._shares))
        argv = [sys.executable, str(CLIENT), self._server.address, str(self._directory), user, json.dumps(jobs)]
        with open(self._directory / f"client-{n}", "a") as out:
            environment = {**os.environ, **QUIET, "FDT_TOKEN": TOKEN}
            self._running[n] = subprocess.Popen(argv, stdout=out, stderr=subprocess.DEVNULL, env=environment)


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
    if "kills" in entry:
        most = ", ".join(f"{user} {slots} (waited for it: {waits})" for user, (slots, waits) in entry["users"].items())
        console.print(f"workers killed: {entry['kills']}; quota {entry['quota']}, most slots of a user: {most}")
    for job, said in entry["wrong"]:
        console.print(f"WRONG: {job}: {said}")
    idle = entry["idle"]["free"] == entry["slots"] and not entry["idle"]["jobs"]
    lost = sum(number for how, number in entry["verdicts"].items() if "lost with" in how)
    within = all(slots <= entry["quota"] for slots, _ in entry.get("users", {}).values())
    return bool(
        not entry["wrong"]
        and not any("not run" in how for how in entry["verdicts"])
        and idle
        and lost <= entry.get("kills", 0)
        and within
        and not any(entry["left"].values())
        and flat
        and entry["code"] == 0
    )


if __name__ == "__main__":
    conclude(main)
