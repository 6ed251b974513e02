"""`make compat`: every script alone, under hfdt and under nfdt, at -np 2; the last lines are a table.

`python -m tests.integration.compat [NAME ...]`. When all did as they should, their rows are put into
docs/compatibility.md.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from client_shim.replica.look import look
from tests.integration.compat.catalogue import OTHER_NUMBERS, REFUSED, STEPS_PRINTED, Script, all_scripts
from tests.integration.compat.outputs import difference

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "docs" / "compatibility.md"
MARKS = "<!-- table: make compat -->\n", "<!-- /table -->\n"
ENVIRONMENT = {"MPLBACKEND": "Agg", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
SHARE = re.compile(r"worker (\d+):\s+([\d,]+) samples")
TIMEOUT_S = 300


def run(command: list[str], script: Script) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """The script's run in a folder of its own, and the files it left there."""
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
        files = {re.sub(r"tfevents.*", "tfevents", str(p.relative_to(folder))) for p in Path(folder).rglob("*")}
    return ended, files


def engine(name: str) -> list[str]:
    return [sys.executable, "-m", f"{name}.cli", "run", "-np", "2"]


def verdict(name: str, script: Script, alone: tuple[subprocess.CompletedProcess[str], set[str]]) -> str:
    """ "same numbers", "trained", "refused", or what went wrong."""
    ended, files = run(engine(name), script)
    refusal = REFUSED.get((script.name, name))
    if refusal:
        return "refused" if refusal in ended.stderr and ended.returncode == 1 else f"FAILED: not refused ({refusal})"
    if ended.returncode != alone[0].returncode:
        return f"FAILED: exit code {ended.returncode}: {ended.stderr.strip().splitlines()[-1:]}"
    shares = {int(rank): int(samples.replace(",", "")) for rank, samples in SHARE.findall(ended.stderr)}
    if len(shares) != 2 or not all(shares.values()):
        return f"FAILED: not divided: {shares}"
    exactly = name == "hfdt" and script.name not in OTHER_NUMBERS
    differs = ""
    if name == "hfdt" or script.name not in STEPS_PRINTED:
        differs = difference(alone[0].stdout, ended.stdout, exactly=exactly)
    if differs or files != alone[1]:
        return f"FAILED: {differs or files ^ alone[1]}"
    return "same numbers" if exactly else "trained"


def main() -> int:
    chosen = [s for s in all_scripts() if not sys.argv[1:] or s.name in sys.argv[1:]]
    rows = {}
    for script in chosen:
        alone = run([sys.executable], script)
        code = alone[0].returncode
        results = [verdict(name, script, alone) for name in ("hfdt", "nfdt")]
        capture = look(str(script.path)).capture
        rows[script.name] = [script.name, script.style, capture, f"exit {code}" if code else "runs", *results]
        print(*rows[script.name], sep=" | ", flush=True)
    if not any("FAILED" in cell for row in rows.values() for cell in row):
        document(rows)
    print(f"\n{table(rows)}", end="")
    return any("FAILED" in cell for row in rows.values() for cell in row)


def table(rows: dict[str, list[str]]) -> str:
    """In Markdown."""
    head = [["script", "style", "capture", "alone", "hfdt", "nfdt"], ["---"] * 6]
    return "".join(f"| {' | '.join(row)} |\n" for row in [*head, *(rows[name] for name in sorted(rows))])


def document(rows: dict[str, list[str]]) -> None:
    """Put `rows` into the document's table; those of scripts that were not run stay."""
    before, rest = DOCUMENT.read_text().split(MARKS[0])
    old, behind = rest.split(MARKS[1])
    known = {s.name for s in all_scripts()}
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in old.splitlines()[2:]]
    kept = {row[0]: row for row in cells if row[0] in known}
    DOCUMENT.write_text(before + MARKS[0] + table({**kept, **rows}) + MARKS[1] + behind)


if __name__ == "__main__":
    sys.exit(main())
