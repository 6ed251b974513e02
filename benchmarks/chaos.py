"""Runs with one fault at a random moment: does each end right, or with the promised error in time?

The script counts how often each row was trained on (scripts/counts.py), so "right" is exact. A third of the faults is
at the start, just after the victim started, a third in a random epoch, a third in the last epoch or after it. After
each run the benchmark checks that nothing is left: no process, no file in /dev/shm, no socket, no temporary file but
logs. It only harms processes that it started. Faults other than a killed process are in disturbances.py. With --out,
finished runs are stored, and the same command continues after them.

A loss before training is reported when training begins, so seconds count from there if that is later.
"""

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from aftermath import Aftermath, words_of
from chaos_table import GONE_S, Result, report
from disturbances import DISTURBANCES, EXPECTED, NOTHING_SAVED
from harness import QUIET, SCRIPTS, console, keep, kept
from survivors import CUT_OFF, Survivors

RIGHT_S = 600.0  # from the kill to the end
BEGIN_S = 180.0  # how long a run may take to get to the moment
PHASES = {"start": 5.0, "training": 0.5, "end": 2.5}  # how many seconds behind its beginning the kill may be
# Others, which only --phase chooses: behind the beginning of `fit`; of the last epoch, as a multiple of the one before.
CHOSEN_PHASES = {"setup": 3.0, "results": 1.2}


@dataclass(frozen=True)
class Case:
    """A kind of run: `flags` of the command; `victim`: the module of the process to kill, "client" or "mpirun"."""

    engine: str
    flags: tuple[str, ...]
    victim: str
    recovers: bool = False
    script: str = "counts.py"
    fault: str = "kill"


WORKERS = {"nfdt": "nfdt.worker.process", "hfdt": "hfdt.worker.process"}
CLOCK = ("clock jumps by +1 h", "clock jumps by -1 h")
RIGHT = ("link cut for 5 s", "host stopped for 20 s", "--run-dir full", "/dev/shm full", *CLOCK)
DAMAGES = ("damaged", "cut short")
HOSTS, OTHER_RANK = ("-H", "host1:1,host2:1,host3:1"), "client_shim.replica.follow"
CASES = (
    Case("nfdt", ("--restarts", "1"), "nfdt.worker.process", recovers=True),
    Case("nfdt", ("--min-np", "1"), "nfdt.worker.process", recovers=True),
    Case("nfdt", ("--ps", "2", "--restarts", "1", "--overlap", "on"), "nfdt.worker.process", recovers=True),
    Case("nfdt", ("--checkpoint-every", "1s"), "nfdt.server", recovers=True),
    Case("nfdt", ("--ps", "2", "--checkpoint-every", "1s"), "nfdt.server", recovers=True),
    Case("nfdt", (), "nfdt.worker.process"),
    Case("nfdt", ("--ps", "2"), "nfdt.server"),
    Case("nfdt", (), "client"),
    Case("nfdt", ("--detach",), "client"),
    Case("nfdt", ("--capture", "replica"), "client_shim.replica.follow", script="counts_loop.py"),
    Case("hfdt", ("--restarts", "1"), "hfdt.worker.process", recovers=True),
    Case("hfdt", ("--min-np", "1"), "hfdt.worker.process", recovers=True),
    Case("hfdt", ("--restarts", "1"), "mpirun", recovers=True),
    Case("hfdt", ("--restarts", "1", "--launcher", "gloo"), "hfdt.worker.process", recovers=True),
    Case("hfdt", (), "hfdt.worker.process"),
    Case("hfdt", (), "mpirun"),
    Case("hfdt", (), "client"),
    Case("hfdt", ("--detach",), "client"),
    Case("hfdt", ("--capture", "replica"), "client_shim.replica.follow", script="counts_loop.py"),
    Case("hfdt", (), "mpirun", fault="MPI_Init fails"),
    *(Case(engine, (), worker, fault="link cut") for engine, worker in WORKERS.items()),
    Case("nfdt", (*HOSTS, "-np", "2"), "nfdt.server", fault="host of -H cut off"),
    Case("hfdt", HOSTS, "hfdt.worker.process", fault="host of -H cut off"),
    *(Case(engine, HOSTS, OTHER_RANK, script="counts_loop.py", fault="host of -H cut off") for engine in WORKERS),
    *(Case(engine, (), worker, recovers=True, fault=fault) for fault in RIGHT for engine, worker in WORKERS.items()),
    *(Case(engine, (), "client", recovers=True, fault=f"checkpoint {how}") for how in DAMAGES for engine in WORKERS),
)


@dataclass(frozen=True)
class Moment:
    """So many seconds behind the beginning of an epoch; at the start, behind the victim's coming.

    In the phase "results" it is behind the beginning of the last epoch, as a multiple of the time of the one before.
    """

    epoch: int
    behind_s: float


def main() -> None:
    given = _arguments()
    done = [Result(**entry) for entry in kept(given.out)]
    engines = given.engines.split(",")
    chosen = [case for case in CASES if given.only in (case.victim, "") and given.faults in (case.fault, "any")]
    cases = {e: [case for case in chosen if case.engine == e] for e in engines}
    for number, engine in itertools.product(range(given.runs), engines):
        if not cases[engine]:
            continue
        case = cases[engine][number % len(cases[engine])]
        phase = given.phase or list(PHASES)[number // len(cases[engine]) % len(PHASES)]
        wanted = engine, number, case.fault, phase
        if any((result.engine, result.number, result.fault, result.phase) == wanted for result in done):
            continue
        if time.monotonic() > given.until:
            break
        done.append(_one(case, number, phase, given))
        keep(given.out, asdict(done[-1]))
    report(done)
    sys.exit(not all(result.good for result in done))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50, help="of each engine, its cases in turn")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engines", default="nfdt,hfdt")
    parser.add_argument("--only", default="", metavar="VICTIM", help="cases of this victim")
    parser.add_argument("--phase", choices=[*PHASES, *CHOSEN_PHASES], help="all at this time; default: at each in turn")
    parser.add_argument("--faults", default="kill", choices=["any", *DISTURBANCES], help="cases of this fault")
    parser.add_argument("--out", type=Path, metavar="FILE.jsonl", help="keep finished runs; go on behind them")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin no run after so many seconds")
    given = parser.parse_args()
    given.until = time.monotonic() + given.budget_s
    return given


def _one(case: Case, number: int, phase: str, given: argparse.Namespace) -> Result:
    """Run `number` of an engine; again, half as late, where it had ended before the victim was killed."""
    for attempt in range(5):
        chance = random.Random(f"{given.seed} {case.engine} {number} {attempt}")
        epoch = given.epochs - 1 if phase in ("end", "results") else chance.randrange(given.epochs - 1)
        moment = Moment(epoch, chance.uniform(0.0, {**PHASES, **CHOSEN_PHASES}[phase]) / 2**attempt)
        result = disturbed(case, number, phase, given.epochs, moment)
        if result.said != "nobody to kill":
            break
    mark = "" if result.good else "NOT GOOD "
    words = [case.engine, str(number), case.fault, case.victim, *case.flags, result.phase, result.said]
    console.print(f"{mark}{' '.join(words)} after {result.seconds:.1f} s {result.left or ''}")
    return result


def disturbed(case: Case, number: int, phase: str, epochs: int, moment: Moment) -> Result:
    """One run of `case`, its victim killed."""
    result = Result(case.engine, number, case.flags, case.victim, case.recovers, phase, fault=case.fault)
    with Aftermath() as traces:
        log = traces.temporary / "output.said"
        prepared = DISTURBANCES[case.fault].prepare(traces, case.engine)
        argv = [*prepared.before, sys.executable, "-m", case.engine, "run", *prepared.options, *case.flags]
        with open(log, "w") as out:
            running = subprocess.Popen(
                [*argv, str(SCRIPTS / case.script), str(epochs)],
                stdout=out,
                stderr=out,
                env={**os.environ, **QUIET, **traces.env, **prepared.env},
                start_new_session=True,
            )
        try:
            _kill_and_watch(result, running, log, traces, moment)
        finally:
            running.kill()
            running.wait()
    result.load = os.getloadavg()[0]
    return result


def _kill_and_watch(
    result: Result,
    running: subprocess.Popen[bytes],
    log: Path,
    traces: Aftermath,
    moment: Moment,
) -> None:
    last, epochs = 0.0, (moment.epoch - 1, moment.epoch) if result.phase == "results" else (moment.epoch,)
    for epoch in epochs:
        before = time.monotonic()
        for _ in _waiting(running, traces, BEGIN_S):
            if _reached(result, log, traces, epoch):
                break
        last = time.monotonic() - before
    time.sleep(moment.behind_s * (last if result.phase == "results" else 1.0))
    victims = _victims(result, traces)
    if not victims:
        return
    survivors = Survivors(traces)
    start = time.monotonic()
    start += DISTURBANCES[result.fault].strike(random.choice(victims), traces) or 0.0
    begun = start
    for _ in _waiting(running, traces, RIGHT_S):
        begun = begun if "fit begins" in _told(log, traces) else time.monotonic()
        survivors.look()
    ended = time.monotonic()
    if running.poll() is None:
        result.said, result.seconds = f"did not end: {_told(log, traces)[-600:]}", ended - start
        return
    survivors.wait(GONE_S)
    result.hosts = survivors.seconds_after(begun)
    if traces.hosts is not None:
        traces.hosts.cut(CUT_OFF, "up")
    traces.wait(GONE_S)
    result.left = traces.left()
    result.seconds = time.monotonic() - start if result.victim == "client" else ended - begun
    result.said = _said(result, _code(running, traces), _told(log, traces))


def _told(log: Path, traces: Aftermath) -> str:
    """Return the output of the command; that of a detached run is in its own directory."""
    return "".join(path.read_text() for path in (log, *traces.temporary.glob("state/hfdt/runs/*/output")))


def _code(running: subprocess.Popen[bytes], traces: Aftermath) -> int:
    """Return the exit code of the run, in the form of Popen."""
    for path in traces.temporary.glob("state/hfdt/runs/*/end.json"):
        return int(json.loads(path.read_text())["code"])
    return int(running.returncode)


def _waiting(running: subprocess.Popen[bytes], traces: Aftermath, patience_s: float) -> Iterator[None]:
    """As long as the command runs, or its detached run, and that is worth while."""
    deadline = time.monotonic() + patience_s
    while (running.poll() is None or _keepers(traces)) and time.monotonic() < deadline:
        yield
        time.sleep(0.05)


def _keepers(traces: Aftermath) -> list[psutil.Process]:
    if not (traces.temporary / "state").exists():
        return []
    return [p for p in traces.processes() if p.is_running() and "fdt.runs" in words_of(p)]


def _reached(result: Result, log: Path, traces: Aftermath, epoch: int) -> bool:
    """Has the result's phase begun? But at the start it begins with `epoch`."""
    if result.phase == "start":
        return bool(_victims(result, traces))
    if result.phase == "setup":
        return "fit begins\n" in _told(log, traces)
    return f"epoch {epoch} begins\n" in _told(log, traces)


def _said(result: Result, code: int, text: str) -> str:
    if result.victim == "client" and code < 0:
        return "killed"
    if code == NOTHING_SAVED:
        return "nobody to kill"
    expected = [line.removeprefix(EXPECTED) for line in text.splitlines() if line.startswith(EXPECTED)]
    if code == 0 and "counted right" in text and all(text.count(each) > 1 for each in expected):
        return "right"
    last = (text.strip().splitlines() or [""])[-1]
    promised = (
        code == 1 and any(words in last for words in DISTURBANCES[result.fault].promised) and "Traceback" not in text
    )
    return "error" if promised else f"exit code {code}: {text[-600:]}"


def _victims(result: Result, traces: Aftermath) -> list[psutil.Process]:
    if traces.hosts is not None:
        return traces.hosts.members(CUT_OFF, result.victim)
    return [p for p in traces.processes() if _is(p, result)]


def _is(process: psutil.Process, result: Result) -> bool:
    words = words_of(process)
    name = Path((words or [""])[0]).name
    if result.victim == "client":
        trains = "--detach" not in result.flags or "-u" in words  # not the command that only waits for it to train
        return result.engine in words and trains and name != "sh"
    return words[1:3] == ["-m", result.victim] or (result.victim == "mpirun" and name in ("mpirun", "prterun"))


if __name__ == "__main__":
    main()
