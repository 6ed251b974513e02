"""`make compat`: every script alone, under hfdt and under nfdt, at -np 2; the last lines are a table.

`python -m tests.integration.compat [--quick] [--continue] [NAME ...]`. At the end, rows of scripts with the expected
result are written to docs/compatibility.md. Each row is stored in .cache/compat when it is made. With `--continue`, a
stopped run leaves out scripts whose rows are newer than the last change to the code.
"""

import argparse
import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from client_shim.replica.detection import detect_capture, with_own_updates
from fdt import PACKAGES
from tests.catalogue import Script
from tests.integration.compat.catalogue import ALL, OTHER_NUMBERS, QUICK, REFUSED, STEPS_PRINTED
from tests.integration.compat.outputs import difference, ends_apart, file_names

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "docs" / "compatibility.md"
MARKS = "<!-- table: make compat -->\n", "<!-- /table -->\n"
ENVIRONMENT = {"MPLBACKEND": "Agg", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
SHARE = re.compile(r"worker (\d+):\s+([\d,]+) steps?")
DONE = ROOT / ".cache" / "compat"
SUITE = "tests/integration/compat"
NEWEST = "2.21"
TIMEOUT_S = 300
TIMED_OUT = f"FAILED: timed out after {TIMEOUT_S} s"
Ran = tuple[subprocess.CompletedProcess[str], set[str]]  # and the files it left


def run(command: list[str], script: Script) -> Ran:
    """The script's run in a folder of its own. Raises TimeoutExpired."""
    with tempfile.TemporaryDirectory() as folder:
        env = {
            **os.environ,
            **ENVIRONMENT,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        ended = subprocess.run(
            [*command, str(script.path)],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        files = {str(p.relative_to(folder)) for p in Path(folder).rglob("*")}
    return ended, files


def engine(name: str) -> list[str]:
    return [sys.executable, "-m", name, "run", "-np", "2"]


def verdict(name: str, script: Script, alone: Ran) -> str:
    """ "same numbers", "trained", "refused", or what went wrong."""
    try:
        ended, files = run(engine(name), script)
    except subprocess.TimeoutExpired:
        return TIMED_OUT
    refusal = REFUSED.get((script.name, name))
    if refusal:
        return "refused" if refusal in ended.stderr and ended.returncode == 1 else f"FAILED: not refused ({refusal})"
    if ended.returncode != alone[0].returncode:
        return f"FAILED: exit code {ended.returncode}: {ended.stderr.strip().splitlines()[-1:]}"
    shares = {int(rank): int(steps.replace(",", "")) for rank, steps in SHARE.findall(ended.stderr)}
    if len(shares) != 2 or not all(shares.values()) or "not divided: " in ended.stderr:
        return f"FAILED: not divided: {shares}"
    exactly = name == "hfdt" and script.name not in OTHER_NUMBERS
    differs = ""
    within = STEPS_PRINTED.get(script.name)
    if name == "hfdt" or script.name not in STEPS_PRINTED:
        differs = difference(alone[0].stdout, ended.stdout, exactly=exactly)
    elif within is not None:
        differs = ends_apart(alone[0].stdout, ended.stdout, within=within)
    mine, theirs = (file_names(each, exactly=name == "hfdt") for each in (files, alone[1]))
    if differs or mine != theirs:
        return f"FAILED: {differs or mine ^ theirs}"
    return "same numbers" if exactly else "trained"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make compat", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="the third that the tests run")
    parser.add_argument("--continue", action="store_true", dest="go_on", help="what is not done yet")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    names = args.names or [name for group in QUICK.values() for name in group if args.quick]
    chosen = [s for s in ALL.values() if not names or s.name in names]
    done = Done(DONE / version())
    rows = {}
    for script in chosen:
        row = done.row(script) if args.go_on else None
        if row is None:
            row = row_of(script)
            print(*row, sep=" | ", flush=True)
        rows[script.name] = row
        if not failed(row):
            done.keep(script, row)
    if version() == NEWEST:
        document({name: row for name, row in rows.items() if not failed(row)})
    print(f"\n{table(rows)}", end="")
    return any(map(failed, rows.values()))


def row_of(script: Script) -> list[str]:
    about = [script.name, script.style, with_own_updates(detect_capture(str(script.path)), divides=True).capture]
    try:
        alone = run([sys.executable], script)
    except subprocess.TimeoutExpired:
        return [*about, TIMED_OUT, "not run", "not run"]
    code = alone[0].returncode
    results = [verdict(name, script, alone) for name in ("hfdt", "nfdt")]
    return [*about, f"exit {code}" if code else "runs", *results]


def failed(row: list[str]) -> bool:
    return any("FAILED" in cell for cell in row)


def version() -> str:
    """TensorFlow's, "2.21": the table in the document is of the newest."""
    return ".".join(importlib.metadata.version("tensorflow").split(".")[:2])


class Done:
    """The rows that are known for the code as it is, a file each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._code = fingerprint(ROOT)

    def row(self, script: Script) -> list[str] | None:
        path = self._path(script)
        return path.read_text().split(" | ") if path.exists() else None

    def keep(self, script: Script, row: list[str]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._path(script).write_text(" | ".join(row))

    def _path(self, script: Script) -> Path:
        known = hashlib.sha256(script.path.read_bytes()).hexdigest()[:8]
        return self._folder / f"{script.name}-{known}-{self._code}"


def fingerprint(root: Path) -> str:
    """What decides a row besides its script: our code, how a run is judged, the modules beside the scripts."""
    ours = [p for name in PACKAGES for p in (root / name).rglob("*.py")]
    suite = [*(root / SUITE).glob("*.py"), *(root / SUITE / "scripts").glob("beside_*.py")]
    files = b"".join(p.read_bytes() for p in sorted([*ours, *suite]))
    return hashlib.sha256(files).hexdigest()[:16]


def table(rows: dict[str, list[str]]) -> str:
    """In Markdown."""
    head = [["script", "style", "capture", "alone", "hfdt", "nfdt"], ["---"] * 6]
    return "".join(f"| {' | '.join(row)} |\n" for row in [*head, *(rows[name] for name in sorted(rows))])


def document(rows: dict[str, list[str]]) -> None:
    """Put `rows` into the document's table; those of scripts that were not run stay."""
    before, rest = DOCUMENT.read_text().split(MARKS[0])
    old, behind = rest.split(MARKS[1])
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in old.splitlines()[2:]]
    kept = {row[0]: row for row in cells if row[0] in ALL}
    DOCUMENT.write_text(before + MARKS[0] + table({**kept, **rows}) + MARKS[1] + behind)


if __name__ == "__main__":
    sys.exit(main())
