"""Options from the configuration file and the environment, as defaults of a command's parser.

The command line is over the environment, that over the file, that over the option's default. In a file, the profile is
over the other tables, and an engine's own table, such as [nfdt.run], over the shared one, [run].
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from fdt.cli import value_of
from fdt.cli.options import together
from fdt.cli.program import SETTINGS, option
from fdt.errors import UsageError, UserError
from frontends.config import COMMANDS, ENGINES, PROFILES, ConfigFile, Keys, find, nearest

PROFILE, NO_CONFIG, RESUME = "--profile", "--no-config", "--resume"
UNSET = ("module", "resume", "profile", "no_config")  # parameters that are given on a command line only


@dataclass(frozen=True)
class Setting:
    """The value of one option from the file or the environment, and its source, such as "hfdt.toml:3 [run]"."""

    param: click.Option
    value: Any
    source: str

    @property
    def argv(self) -> list[str]:
        """The option as a command line gives it."""
        name = max(self.param.opts, key=len)
        if self.param.is_flag or self.value is None:
            return [name] if self.value else []
        return [f"{name}={self.value}"]


def profiles(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the profiles that a shell offers; none where the file is wrong."""
    try:
        config = find()
    except UserError:
        return []
    return [name for name in (config.table((PROFILES,)) if config else ()) if name.startswith(incomplete)]


_PROFILE = "Use the tables of this profile of the configuration file, too.  [default: HFDT_PROFILE or NFDT_PROFILE]"
_NONE = "Read neither a configuration file nor HFDT_* and NFDT_* variables. `config` shows what they set."
config_options = together(
    option("Configuration", PROFILE, metavar="NAME", expose_value=False, shell_complete=profiles, help=_PROFILE),
    option("Configuration", NO_CONFIG, is_flag=True, expose_value=False, help=_NONE),
)


def configure(ctx: click.Context, args: Sequence[str]) -> None:
    """Make the settings for the command of `ctx` the defaults of its parser.

    A resumed run has the options of the run that it continues, so nothing is read for it.

    Args:
        ctx: The context of the command that is about to be parsed.
        args: Its arguments without the script's.

    Raises:
        UsageError: The file, the profile or a value is wrong.
    """
    if ctx.info_name not in COMMANDS or ctx.parent is None or ctx.parent.parent is not None:
        return
    if NO_CONFIG in args:
        if value_of(args, PROFILE) is not None:
            raise UsageError(f"{PROFILE} names tables of the file that {NO_CONFIG} ignores; leave one of them out")
        return
    if value_of(args, RESUME) is None:
        engine = str(ctx.parent.info_name)
        found = settings(ctx, engine, find(), value_of(args, PROFILE))
        ctx.default_map = {name: each.value for name, each in found.items()}
        ctx.meta[SETTINGS] = found


def settings(
    ctx: click.Context, engine: str, config: ConfigFile | None, profile: str | None = None
) -> dict[str, Setting]:
    """Return the settings for the command of `ctx`, by parameter.

    Args:
        ctx: The command's context.
        engine: "hfdt" or "nfdt".
        config: The configuration file, if there is one.
        profile: The profile; None: that of the environment, or none.
    """
    params = {name: param for param in configurable(ctx.command, ctx) for name in names_of(param)}
    prefix = f"{engine.upper()}_"
    profile = profile if profile is not None else os.environ.get(f"{prefix}PROFILE") or None
    found: dict[str, Setting] = {}
    if config is not None:
        for keys in _tables(config, engine, str(ctx.info_name), profile):
            found |= {each.param.name or "": each for each in _of_table(ctx, config, keys, params)}
    elif profile is not None:
        raise UsageError(f"there is no configuration file with the profile {profile!r}; `{engine} config` says more")
    found |= {each.param.name or "": each for each in _of_environment(ctx, prefix, params)}
    return found


def configurable(command: click.Command, ctx: click.Context) -> list[click.Option]:
    """Return the options of `command` that a file or a variable can set."""
    params = [param for param in command.get_params(ctx) if isinstance(param, click.Option)]
    return [param for param in params if param.name not in UNSET and not (param.hidden or param.is_eager)]


def names_of(param: click.Option) -> list[str]:
    """Return the option's names without dashes, the one that is shown first: ["np", "num-proc"]."""
    spelled = [name.lstrip("-") for name in (*param.opts, *getattr(param, "old", ()))]
    return [name for name in spelled if len(name) > 1]


def _tables(config: ConfigFile, engine: str, command: str, profile: str | None) -> Iterator[Keys]:
    """Yield the names of the tables that apply, the weakest first."""
    yield from ((command,), (engine, command))
    known = config.table((PROFILES,))
    if profile is None:
        return
    if profile not in known:
        hint = nearest(profile, tuple(known))
        raise UsageError(f"{config.where(())}: there is no profile {profile!r}, [profiles.{profile}]; {hint}")
    yield from ((PROFILES, profile, command), (PROFILES, profile, engine, command))


def _of_table(
    ctx: click.Context, config: ConfigFile, keys: Keys, params: Mapping[str, click.Option]
) -> Iterator[Setting]:
    table = ".".join((*config.prefix, *keys))
    seen: dict[str | None, str] = {}
    for key, value in config.table(keys).items():
        where, name = config.where((*keys, key)), key.replace("_", "-")
        if name not in params:
            raise UsageError(f"{where}: [{table}] has no option {key!r}; {_hint(ctx, keys, name, params)}")
        param = params[name]
        if param.name in seen:
            raise UsageError(f"{where}: [{table}] has {seen[param.name]} and {key}, which are one option")
        seen[param.name] = key
        yield _setting(ctx, param, _from_toml(param, value, where, key, config.path.parent), f"{where} [{table}]", key)


def _hint(ctx: click.Context, keys: Keys, name: str, params: Mapping[str, click.Option]) -> str:
    close = get_close_matches(name, params, 1)
    if close:
        return f"did you mean {close[0]}?"
    shared = not set(keys) & set(ENGINES)
    apart = f"; an option of one engine alone stands in [hfdt.{keys[-1]}] or [nfdt.{keys[-1]}]" if shared else ""
    return f"`{ctx.command_path} --help` lists the options{apart}"


def _from_toml(param: click.Option, value: Any, where: str, key: str, folder: Path) -> Any:
    """Return a TOML value as a command line would give it; a relative path starts at the file's directory."""
    if isinstance(value, bool):
        if param.is_flag:
            return value
        if getattr(param, "needs_no_value", False):
            return param.flag_value if value else None
    elif isinstance(value, (str, int, float)) and not param.is_flag:
        is_path = isinstance(param.type, click.Path)
        return str(folder / os.path.expanduser(str(value))) if is_path else str(value)
    wanted = "true or false" if param.is_flag else "a text or a number"
    raise UsageError(f"{where}: {key} must be {wanted}. Received: {_shown(value)}")


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _of_environment(ctx: click.Context, prefix: str, params: Mapping[str, click.Option]) -> Iterator[Setting]:
    names = {_variable(prefix, name): param for name, param in params.items()}
    given = {name: value for name, value in sorted(os.environ.items()) if name.startswith(prefix) and value}
    _check_spelling(ctx, prefix, [name for name in given if name not in names])
    for name in (name for name in given if name in names):
        yield _setting(ctx, names[name], given[name], name, name)


def _variable(prefix: str, name: str) -> str:
    return prefix + name.upper().replace("-", "_")


def _check_spelling(ctx: click.Context, prefix: str, unknown: Sequence[str]) -> None:
    """Raise UsageError for a variable that no command reads, and whose name is nearly that of one that is read."""
    if not unknown or ctx.parent is None:
        return
    for name in unknown:
        if name in (f"{prefix}RESUME", f"{prefix}NO_CONFIG"):
            flag = "--" + name.removeprefix(prefix).lower().replace("_", "-")
            raise UsageError(f"{flag} is given on the command line alone. Received: the variable {name}; unset it")
    known = {f"{prefix}PROFILE"}
    for command in COMMANDS:
        found = ctx.parent.command.get_command(ctx.parent, command)  # type: ignore[attr-defined]
        if found is not None:
            known |= {_variable(prefix, name) for param in configurable(found, ctx) for name in names_of(param)}
    for name in (name for name in unknown if name not in known):
        if close := get_close_matches(name, known, 1, 0.85):
            raise UsageError(f"the variable {name} sets no option; did you mean {close[0]}? Unset it, or rename it")


def _setting(ctx: click.Context, param: click.Option, value: Any, source: str, key: str) -> Setting:
    """Return the setting. Raises UsageError where the option's type refuses the value."""
    try:
        converted = param.type_cast_value(ctx, value)
    except (UserError, click.BadParameter) as error:
        reason = error.message if isinstance(error, click.ClickException) else str(error)
        raise UsageError(f"{source}: {reason}" if key in source else f"{source}: {key}: {reason}") from None
    return Setting(param, converted if param.is_flag else value, source)
