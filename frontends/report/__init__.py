"""The report of one or several runs: one self-contained HTML file, made from the records that a run writes."""

import sys
from pathlib import Path

FILE, REPORT = "records.jsonl", "report.html"
MOST_BYTES = 200_000_000  # of records that the end of a run reads, some seconds


def write_run_report(engine: str, directory: Path, quiet: bool) -> None:
    """Write the report of a run that has just ended into its log directory. Never raises: the run is over.

    Args:
        engine: The engine's name, for the line on stderr.
        directory: The log directory.
        quiet: Print no line about the report.
    """
    try:
        from fdt.errors import UserError
        from fdt.report import nbytes

        size = (directory / FILE).stat().st_size
        if size > MOST_BYTES:
            raise UserError(f"the records have {nbytes(size)}; `{engine} report {directory}` writes it")
        from frontends.report.page import render, write
        from frontends.report.reader import RunReader

        reader = RunReader(directory, directory.name)
        reader.update()
        write(render(directory.name, [reader.as_json()]), directory / REPORT)
        line = f"{engine}: {'report:':<12} {directory / REPORT}"
    except Exception as error:  # noqa: BLE001  the run's own end is what matters
        line = f"{engine}: the report was not written: {error}"
    if not quiet:
        print(line, file=sys.stderr, flush=True)
