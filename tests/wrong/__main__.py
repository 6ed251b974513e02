"""Run scripts that were once trained wrong, alone and divided: `python -m tests.wrong [NAME ...] [-np N]`.

`--engine hfdt` selects the engine. The last lines are a table: name, style, verdict. Scripts run in bundles. With
`--each` every script has a process, the engine detects the capture, and the rows of each worker are listed. `--show`
prints both outputs of a wrong script.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence

from tests.wrong.catalogue import ALL
from tests.wrong.running import alone, by_itself, divided
from tests.wrong.verdicts import REFUSED, SAME, Verdict


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.wrong", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("-np", type=int, default=2, dest="ranks")
    parser.add_argument("--engine", default="hfdt")
    parser.add_argument("--each", action="store_true", help="one process a script")
    parser.add_argument("--show", action="store_true", help="both outputs of what is wrong")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    unknown = [name for name in args.names if name not in ALL]
    if unknown:
        sys.exit(f"no such script in tests/wrong/scripts. Received: {', '.join(unknown)}")
    names = args.names or list(ALL)
    expected = alone(names)
    found = {}
    for name, verdict, output in verdicts(names, expected, args):
        found[name] = verdict
        if args.show and verdict.kind not in (SAME, REFUSED):
            print(f"-- {name}, alone:\n{expected[name]}-- {name}, {args.ranks} ranks:\n{output}", flush=True)
    print(table(found))
    wrong = [name for name, verdict in found.items() if verdict.kind not in (SAME, REFUSED)]
    print(f"{len(found) - len(wrong)} of {len(found)} are right", *wrong)
    return bool(wrong)


def verdicts(
    names: Sequence[str], expected: dict[str, str], args: argparse.Namespace
) -> Iterator[tuple[str, Verdict, str]]:
    """Each script's verdict and output."""
    if not args.each:
        for name, (verdict, output) in divided(names, args.engine, args.ranks).items():
            yield name, verdict, output
        return
    for name in names:
        verdict, output = by_itself(ALL[name], args.engine, args.ranks, expected[name])
        print(name, "|", verdict, "|", shares(output), flush=True)
        yield name, verdict, output


def shares(output: str) -> str:
    """What each worker trained on: "18 + 17 samples"; steps, where samples are not known."""
    for unit in ("samples", "steps"):
        found = re.findall(rf": worker \d+:.*?([\d,]+) {unit}?\b", output)
        if found:
            return f"{' + '.join(found)} {unit}"
    return "not divided"


def table(found: dict[str, Verdict]) -> str:
    """In Markdown."""
    rows = ["| script | style | verdict |", "| --- | --- | --- |"]
    return "\n".join(rows + [f"| {name} | {ALL[name].style} | {verdict} |" for name, verdict in found.items()])


if __name__ == "__main__":
    sys.exit(main())
