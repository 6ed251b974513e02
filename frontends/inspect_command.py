"""Command `inspect`: what a run would send, as text or as one JSON object."""

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from fdt.cli.options import DEFAULT_WORKERS, REPORTS, seed_option, workers_option
from fdt.cli.program import ScriptCommand, option
from fdt.environment import quiet_import
from frontends.settings import config_options

if TYPE_CHECKING:
    from client_shim.inspect import Inspection
    from client_shim.replica.detection import CaptureDetection


@click.command("inspect", cls=ScriptCommand)
@workers_option
@seed_option
@option(REPORTS, "--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else, to stdout.")
@config_options
def inspect_command(script: str, words: list[str], workers: int | None, seed: int | None, as_json: bool) -> int:
    """Print what a run would send, and the estimated time.

    script.py runs up to its first `fit` and is not trained. A script with a training loop of its own is read only.
    """
    name = str(click.get_current_context().find_root().info_name)
    with quiet_import():
        from client_shim.inspect import inspect
        from client_shim.state import Settings

        sizes = importlib.import_module(f"{name}.compressors").sizes
        given = script, words, name, workers or DEFAULT_WORKERS, Settings(seed=seed), sizes
        if not as_json:
            return inspect(*given)
        found: list[dict[str, Any]] = []
        with _stdout_diverted():
            code = inspect(*given, show=lambda looked, first: found.append(_as_json(looked, first)))
    for each in found:
        click.echo(json.dumps({"command": f"{name} inspect", "script": script, **each}))
    return code


def _as_json(looked: "CaptureDetection", found: "Inspection | None") -> dict[str, Any]:
    from client_shim.inspect import compressed_bytes, step_bytes

    calls = [asdict(call) for call in looked.findings]
    if found is None:
        return {"capture": looked.capture, "calls": calls, "fit": None}
    measured = {"step_seconds": found.step_s, "step_bytes": step_bytes(found.job)}
    fit = {**asdict(found.job), "note": found.note, "mapped": found.mapped, **measured}
    return {"capture": "extract", "calls": calls, "fit": {**fit, "compressed": compressed_bytes(found)}}


@contextlib.contextmanager
def _stdout_diverted() -> Iterator[None]:
    """Within, what the script prints, C code included, goes to stderr."""
    sys.stdout.flush()
    ours = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(ours, 1)
        os.close(ours)
