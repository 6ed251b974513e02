"""Command `config`: each option's value, and the flag, variable, or line of a file that sets it."""

import json
import os
import re
from collections.abc import Sequence
from typing import Any

import click
from click.core import ParameterSource

from fdt.cli import split
from fdt.cli.program import SETTINGS, Command, TakesScript
from fdt.errors import UsageError
from frontends.config import COMMANDS, FILE, PROFILES, PROJECT, find
from frontends.settings import PROFILE, configurable, names_of, profiles
from frontends.shared_command import SharedCommand, print_table

DEFAULT = "default"
_IN_HELP = re.compile(r"\[default: (.*?)\]", re.S)
EXAMPLES = """\b
Examples:
  hfdt config                                    the options of run
  hfdt config --profile cluster run -np 4        as this command line would have them
  hfdt config --json serve                       one JSON object
"""


@click.command("config", cls=SharedCommand, epilog=EXAMPLES, context_settings={"allow_interspersed_args": False})
@click.option(PROFILE, metavar="NAME", shell_complete=profiles, help="Use the tables of this profile, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.argument("typed", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND [OPTIONS]]")
def config_command(typed: Sequence[str], profile: str | None, as_json: bool) -> None:
    """Show each option's value, and what sets it.

    The command line overrides the environment, which overrides hfdt.toml or [tool.hfdt] of pyproject.toml. A default
    holds where none of them sets the option.
    COMMAND is run, verify, inspect, serve, queue or simulate.  [default: run]
    """
    parent = click.get_current_context().parent
    assert parent is not None
    name, *rest = typed or ("run",)
    group: Any = parent.command
    command = group.get_command(parent, name) if name in COMMANDS else None
    if command is None:
        known = ", ".join(each for each in COMMANDS if each in group.list_commands(parent))
        raise UsageError(f"`{group.name} config` shows the options of {known}. Received: {name}")
    ctx = click.Context(command, info_name=name, parent=parent)
    Command.parse_args(command, ctx, _own(command, ctx, [*([PROFILE, profile] if profile else []), *rest]))
    found = _file()
    options = {names_of(param)[0]: _row(ctx, param) for param in configurable(command, ctx)}
    if as_json:
        click.echo(json.dumps({"command": name, **found, "options": options}))
    else:
        _show(f"{group.name} {name}", found, options)


def _own(command: click.Command, ctx: click.Context, typed: Sequence[str]) -> list[str]:
    return split(typed, *command.names(ctx)).ours if isinstance(command, TakesScript) else list(typed)


def _file() -> dict[str, Any]:
    config = find()
    if config is None:
        return {"file": None, "profiles": []}
    return {"file": os.path.relpath(config.path), "profiles": list(config.table((PROFILES,)))}


def _row(ctx: click.Context, param: click.Option) -> dict[str, Any]:
    """Return the option's value and its source."""
    name = param.name or ""
    source, value = ctx.get_parameter_source(name), ctx.params.get(name)
    if source == ParameterSource.COMMANDLINE:
        return {"value": _plain(value), "source": "command line"}
    setting = ctx.meta.get(SETTINGS, {}).get(name)
    if setting is not None and setting.value is not None:
        return {"value": _plain(setting.value), "source": setting.source}
    described = _IN_HELP.search(param.help or "")
    return {"value": " ".join(described[1].split()) if described else _plain(value), "source": DEFAULT}


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) or value is None else str(value)


def _show(title: str, found: dict[str, Any], options: dict[str, dict[str, Any]]) -> None:
    where = found["file"] or f"no {FILE} and no [tool.hfdt] in {PROJECT}"
    profiles = f"; profiles: {', '.join(found['profiles'])}" if found["profiles"] else ""
    click.echo(f"{title}: {where}{profiles}\n")
    rows = [(name, _shown(option["value"]), option["source"]) for name, option in options.items()]
    print_table([("OPTION", "VALUE", "SOURCE"), *rows])


def _shown(value: Any) -> str:
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
