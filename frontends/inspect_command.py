"""Command `inspect`: what a run would send, as text or as one JSON object."""

import contextlib
import functools
import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from fdt.cli.options import DEFAULT_WORKERS, REPORTS, seed_option, together, workers_option
from fdt.cli.program import ScriptCommand, option
from fdt.environment import quiet_import
from frontends.settings import config_options

if TYPE_CHECKING:
    from client_shim.inspection import Inspection
    from client_shim.replica.detection import CaptureDetection


_options = together(  # that both engines have
    config_options,
    workers_option,
    seed_option,
    option(REPORTS, "--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else, to stdout."),
)


_COST = "Let workers train for some seconds and print memory and time of 1, 2, 4 and 8.  [default: --cost]"


@click.command("inspect", cls=ScriptCommand)
@_options
@option(REPORTS, "--cost/--no-cost", default=True, help=_COST)
def hfdt_command(script: str, script_args: list[str], **given: Any) -> int:
    """Print what a run would send, its memory, and the time of a step.

    script.py runs up to its first `fit` and is not trained. A script with a training loop of its own is read only.
    Workers train for some seconds to measure memory and time.
    """
    return _inspect("hfdt", script, script_args, given)


@click.command("inspect", cls=ScriptCommand)
@_options
def nfdt_command(script: str, script_args: list[str], **given: Any) -> int:
    """Print what a run would send, and the estimated time.

    script.py runs up to its first `fit` and is not trained. A script with a training loop of its own is read only.
    """
    return _inspect("nfdt", script, script_args, given)


def _inspect(engine: str, script: str, script_args: list[str], given: Mapping[str, Any]) -> int:
    with quiet_import():
        from client_shim.inspect import inspect
        from client_shim.state import Settings

        of = functools.partial(importlib.import_module, package=engine)
        cost = of(".cost.report").reported if given.get("cost") else None
        workers, settings = given["workers"] or DEFAULT_WORKERS, Settings(seed=given["seed"])
        run = functools.partial(
            inspect, script, script_args, engine, workers, settings, of(".compressors").sizes, cost=cost
        )
        if not given["as_json"]:
            return run()
        found: list[dict[str, Any]] = []
        with stdout_diverted():
            code = run(show=lambda detected, first: found.append(_as_json(detected, first)))
    for each in found:
        click.echo(json.dumps({"command": f"{engine} inspect", "script": script, **each}))
    end_stdout()
    return code


def _as_json(detected: "CaptureDetection", found: "Inspection | None") -> dict[str, Any]:
    from client_shim.inspection import compressed_bytes, step_bytes

    calls = [asdict(call) for call in detected.findings]
    if found is None:
        return {"capture": detected.capture, "calls": calls, "fit": None}
    measured = {"step_seconds": found.step_s, "step_bytes": step_bytes(found.job)}
    cost = None if found.cost is None else found.cost.values
    fit = {**asdict(found.job), "note": found.note, "mapped": found.mapped, **measured}
    return {"capture": "extract", "calls": calls, "fit": {**fit, "compressed": compressed_bytes(found), "cost": cost}}


def end_stdout() -> None:
    """Send to stderr all output that the script prints from now on, at the interpreter's exit."""
    if (stdout := sys.__stdout__) is not None and sys.stdout is stdout:
        stdout.flush()
        os.dup2(2, 1)


@contextlib.contextmanager
def stdout_diverted() -> Iterator[None]:
    """Within the context, what the script prints, C code included, goes to stderr."""
    sys.stdout.flush()
    ours = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(ours, 1)
        os.close(ours)
