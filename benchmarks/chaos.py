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
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
from aftermath import Aftermath, words_of
from disturbances import DISTURBANCES
from harness import QUIET, SCRIPTS, console, keep, kept
from rich.table import Table

RIGHT_S, ERROR_S, GONE_S = 600.0, 10.0, 30.0  # from the kill to: the end, the error, nothing left
PROMISED = ("was lost: ", "lost its connection to another worker", "does not answer; check the network")
CUT_S = 30.0  # from the loss of a host's link to the error
BEGIN_S = 180.0  # how long a run may take to get to the moment
PHASES = {"start": 5.0, "training": 0.5, "end": 2.5}  # how many seconds behind its beginning the kill may be


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
RIGHT = ("link cut for 5 s", "host stopped for 20 s", "--run-dir full", "/dev/shm full")
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
    *(Case(engine, (), worker, fault="link cut") for engine, worker in WORKERS.items()),
    *(Case(engine, (), worker, recovers=True, fault=fault) for fault in RIGHT for engine, worker in WORKERS.items()),
    *(Case(engine, (), "client", recovers=True, fault="checkpoint damaged") for engine in WORKERS),
)


@dataclass(frozen=True)
class Moment:
    """So many seconds behind the beginning of an epoch; at the start, behind the victim's coming."""

    epoch: int
    behind_s: float


@dataclass
class Result:
    """`seconds` from the kill (or the beginning of training, if that is later) to the command's end, or for a killed
    client to the end of the last process.
    """

    engine: str
    number: int
    flags: Sequence[str]
    victim: str
    recovers: bool
    phase: str
    said: str = "nobody to kill"
    seconds: float = 0.0
    load: float = 0.0  # of the machine, when it ended
    left: list[str] = field(default_factory=list)
    fault: str = "kill"

    @property
    def good(self) -> bool:
        if self.left:
            return False
        if self.victim == "client" and not self.recovers:
            return self.said in ("killed", "right") and self.seconds < GONE_S
        within_s = ERROR_S if self.fault == "kill" else CUT_S
        return self.said == "right" or (not self.recovers and self.said == "error" and self.seconds < within_s)


def main() -> None:
    given = _arguments()
    done = [Result(**entry) for entry in kept(given.out)]
    engines = given.engines.split(",")
    chosen = [case for case in CASES if given.only in (case.victim, "") and given.faults in (case.fault, "any")]
    cases = {e: [case for case in chosen if case.engine == e] for e in engines}
    for number, engine in itertools.product(range(given.runs), engines):
        case = cases[engine][number % len(cases[engine])]
        if any((result.engine, result.number, result.fault) == (engine, number, case.fault) for result in done):
            continue
        if time.monotonic() > given.until:
            break
        phase = given.phase or list(PHASES)[number // len(cases[engine]) % len(PHASES)]
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
    parser.add_argument("--phase", choices=PHASES, help="all at this time; default: at each in turn")
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
        epoch = given.epochs - 1 if phase == "end" else chance.randrange(given.epochs - 1)
        moment = Moment(epoch, chance.uniform(0.0, PHASES[phase]) / 2**attempt)
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
    for _ in _waiting(running, traces, BEGIN_S):
        if _reached(result, log, traces, moment.epoch):
            break
    time.sleep(moment.behind_s)
    victims = [p for p in traces.processes() if _is(p, result)]
    if not victims:
        return
    start = begun = time.monotonic()
    DISTURBANCES[result.fault].strike(random.choice(victims), traces)
    for _ in _waiting(running, traces, RIGHT_S):
        begun = begun if "fit begins" in _told(log, traces) else time.monotonic()
    ended = time.monotonic()
    if running.poll() is None:
        result.said, result.seconds = f"did not end: {_told(log, traces)[-600:]}", ended - start
        return
    traces.wait(GONE_S)
    result.left = traces.left()
    result.seconds = time.monotonic() - start if result.victim == "client" else ended - begun
    result.said = _said(result.victim, _code(running, traces), _told(log, traces))


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
        return any(_is(p, result) for p in traces.processes())
    return f"epoch {epoch} begins\n" in _told(log, traces)


def report(results: Sequence[Result]) -> None:
    table = Table("fault", "of", "command", "runs", "right", "error", "good", "slowest s", "left behind")
    for case in CASES:
        wanted = case.engine, case.flags, case.victim, case.fault
        mine = [r for r in results if (r.engine, tuple(r.flags), r.victim, r.fault) == wanted]
        counts = [sum(result.said == said for result in mine) for said in ("right", "error")]
        left = sorted({what.split()[0] for result in mine for what in result.left})
        if mine:
            table.add_row(
                case.fault,
                case.victim,
                " ".join([case.engine, *case.flags]),
                str(len(mine)),
                *map(str, counts),
                str(sum(result.good for result in mine)),
                f"{max(result.seconds for result in mine):.1f}",
                ", ".join(left) or "nothing",
            )
    console.print(table)
    for result in results:
        if not result.good:
            console.print(f"NOT GOOD: {result}")
    for engine in sorted({result.engine for result in results}):
        mine = [result for result in results if result.engine == engine]
        console.print(f"{engine}: {sum(r.good for r in mine)} of {len(mine)} as promised; load {_spread(mine)}")


def _spread(results: Sequence[Result]) -> str:
    loads = sorted(result.load for result in results)
    return f"{loads[0]:.0f} to {loads[-1]:.0f}, median {loads[len(loads) // 2]:.0f}"


def _said(victim: str, code: int, text: str) -> str:
    if victim == "client" and code < 0:
        return "killed"
    if code == 0 and "counted right" in text:
        return "right"
    last = (text.strip().splitlines() or [""])[-1]
    promised = code == 1 and any(words in last for words in PROMISED) and "Traceback" not in text
    return "error" if promised else f"exit code {code}: {text[-600:]}"


def _is(process: psutil.Process, result: Result) -> bool:
    words = words_of(process)
    name = Path((words or [""])[0]).name
    if result.victim == "client":
        trains = "--detach" not in result.flags or "-u" in words  # not the command that only waits for it to train
        return result.engine in words and trains and name != "sh"
    return words[1:3] == ["-m", result.victim] or (result.victim == "mpirun" and name in ("mpirun", "prterun"))


if __name__ == "__main__":
    main()
