"""The frame of the command line: commands that take a script, options in groups, one line for every error."""

import abc
import contextlib
import gc
import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

import fdt
from fdt.cli import DASH_M, EVERYWHERE, WORKERS, Split, checked_script, modules_below, resumed, split
from fdt.ending import ended_by_signals
from fdt.errors import EXIT_CODES, EXIT_INTERRUPTED, UsageError, UserError
from fdt.signals import Ended

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

OTHER_OPTIONS = "Other"
COMPLETED = "fdt.completed"  # in a context's meta: the only options that a shell completes where the cursor is
COMMAND = "fdt.command"  # in a context's meta: the arguments that a user gave, where that is no command line
TYPED = "fdt.typed"  # in a context's meta: our options as the user wrote them, after those of a configuration
SETTINGS = "fdt.settings"  # in a context's meta: the options that a configuration sets, by parameter
Configure = Callable[[click.Context, Sequence[str]], None]  # sets the defaults of the parser for these arguments


class Option(click.Option):
    """An option under a heading of the help. `old`: spellings that are accepted, and neither shown nor completed."""

    def __init__(self, *args: Any, group: str = OTHER_OPTIONS, old: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group, self.old, self.needs_no_value = group, old, "flag_value" in kwargs

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        shown, self.opts = self.opts, [*self.opts, *self.old]
        super().add_to_parser(parser, ctx)
        self.opts = shown


def option(group: str, *names: str, **kwargs: Any) -> Callable[[Decorated], Decorated]:
    """Return `click.option` under the heading `group`."""
    return click.option(*names, cls=Option, group=group, **kwargs)


class Command(click.Command):
    """A command whose help groups its options, and whose defaults may come from a configuration."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        configure: Configure | None = getattr(ctx.find_root().command, "configure", None)
        if configure is not None and not ctx.resilient_parsing:
            configure(ctx, args)
        with _sources_named(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with _sources_named(ctx):
            return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record:
                groups.setdefault(getattr(param, "group", OTHER_OPTIONS), []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def configured(ctx: click.Context) -> dict[str, Any]:
    """Return the settings of the configuration that the command line does not override, by parameter."""
    settings: Mapping[str, Any] = ctx.meta.get(SETTINGS, {})
    by_settings = ParameterSource.DEFAULT_MAP
    return {name: each for name, each in settings.items() if ctx.get_parameter_source(name) == by_settings}


@contextlib.contextmanager
def _sources_named(ctx: click.Context) -> Iterator[None]:
    """Within, an error about an option that a configuration sets names the line or variable that sets it."""
    try:
        yield
    except UsageError as error:
        flags = set(re.findall(r"--?[a-z][\w-]*", str(error)))
        found = [(flags & set(each.param.opts), each.source) for each in configured(ctx).values()]
        named = [f"{min(names)} is set by {source}" for names, source in found if names and source not in str(error)]
        raise UsageError("; ".join([str(error), *named])) from None


class TakesScript(Command, abc.ABC):
    """A command that takes a script. It completes its own options where they may stand, and all else as a path.

    Attributes:
        arguments_of_script: States where the script's arguments stand, for the error of an unknown option.
    """

    arguments_of_script: str

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            return self.parse_whole(ctx, args)
        parts = split(args, *self.names(ctx))
        ctx.meta[COMPLETED] = self.completed(args, parts)
        return super().parse_args(ctx, parts.ours)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        names = ctx.meta.get(COMPLETED)
        params = super().get_params(ctx)
        return params if names is None else [param for param in params if names & set(param.opts)]

    def completed(self, args: Sequence[str], parts: Split) -> set[str] | None:
        """Return the options that may follow `args`; None for all."""
        return set() if "--" in args else None

    @abc.abstractmethod
    def parse_whole(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse a command line that is run."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = ctx.meta[COMPLETED]
        found = super().shell_complete(ctx, incomplete) if incomplete.startswith("-") else []
        return [i for i in found if names is None or i.value in names] or [CompletionItem(incomplete, type="file")]

    def names(self, ctx: click.Context) -> tuple[set[str], set[str]]:
        """Return our options that take a value, and those that do not."""
        valued: set[str] = set()
        flags: set[str] = set()
        for param in self.get_params(ctx):
            if isinstance(param, click.Option):
                names = [*param.opts, *param.secondary_opts, *getattr(param, "old", ())]
                bare = param.is_flag or param.count or getattr(param, "needs_no_value", False)
                (flags if bare else valued).update(names)
        return valued, flags


class ScriptCommand(TakesScript):
    """A command that takes a script and its arguments; the callback gets `script`, `script_args`, and our options."""

    arguments_of_script = "the script's own arguments stand after the script"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        text = "Run this module instead of a script, as `python -m` does; its arguments follow."
        named: dict[str, Any] = {"metavar": "MODULE", "shell_complete": lambda ctx, param, start: modules_below(start)}
        self.params.insert(0, Option([DASH_M, "module"], expose_value=False, help=text, **named))

    def completed(self, args: Sequence[str], parts: Split) -> set[str] | None:
        behind = parts.script is not None and "--" not in args
        return {WORKERS, *EVERYWHERE} if behind else super().completed(args, parts)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS]", "script.py|-m MODULE", "[SCRIPT'S ARGUMENTS]"]

    def parse_whole(self, ctx: click.Context, args: list[str]) -> list[str]:
        parts = split(args, *self.names(ctx))
        ctx.meta[TYPED] = list(parts.ours)
        if any(param.name == "resume" for param in self.get_params(ctx)):
            parts = resumed(parts, str(ctx.find_root().info_name))
        rest = Command.parse_args(self, ctx, parts.ours)
        ctx.meta[TYPED][:0] = [argument for each in configured(ctx).values() for argument in each.argv]
        if parts.script is None:
            raise UsageError(f"`{ctx.command_path}` needs a script: {ctx.command_path} [OPTIONS] script.py")
        ctx.params.update(script=checked_script(parts.script), script_args=parts.script_args)
        if parts.overlooked:
            print_note(ctx, _whose(ctx.command_path, parts.script, parts.overlooked))
        return rest


class OptionsAnywhere(TakesScript):
    """A ScriptCommand whose options may stand before or after the script; the script's arguments follow `--`."""

    allow_extra_args = True
    arguments_of_script = "the script's own arguments stand after --"

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["script.py", "[OPTIONS]", "[-- SCRIPT'S ARGUMENTS]"]

    def parse_whole(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        scripts = Command.parse_args(self, ctx, args[:end])
        if len(scripts) != 1:
            received = " ".join(scripts) or "none"
            raise UsageError(f"`{ctx.command_path}` needs one script, whose arguments follow --. Received: {received}")
        ctx.params.update(script=checked_script(scripts[0]), script_args=args[end + 1 :])
        return []


class CommandGroup(click.Group):
    """The command `hfdt` or `nfdt`. Every user error is one line on stderr and an exit code.

    `later`: commands as "module:name", imported when they are used, because `run` does not need them.
    `configure`: reads the configuration for a command that is about to be parsed.
    """

    command_class = Command

    def __init__(self, *args: Any, later: Mapping[str, str], configure: Configure | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._later, self.configure = later, configure
        self.failed: UserError | None = None  # the error that ended the command

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._later})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._later:
            return super().get_command(ctx, cmd_name)
        module, _, name = self._later[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, known = args[0], self.list_commands(ctx)
        if name in known or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        if name.endswith((".py", ".ipynb")):
            raise UsageError(f"a script needs the command run: {self.name} run {' '.join(args)}")
        close = get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]}?" if close else f"the commands: {', '.join(known)}"
        raise UsageError(f"no such command. Received: {name!r}; {hint}")

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        plain: Any = super().main
        body = partial(plain, *args, standalone_mode=False, **{**extra, "prog_name": self.name})
        if standalone_mode:
            sys.exit(self._guarded(body))
        return body()

    def _guarded(self, body: Callable[[], Any]) -> int:
        """Return the exit code of `body`; print one line for an error."""
        try:
            with ended_by_signals():
                return body() or 0
        except UserError as error:
            self.failed = error
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            return error.exit_code
        except click.ClickException as error:
            self.failed = usage_error(error)
        except Ended as ended:
            gc.freeze()
            return self._fail(ended.message, ended.code) if ended.message else ended.code
        except (KeyboardInterrupt, click.Abort):
            gc.freeze()  # without it the final collection scans all of TensorFlow: seconds, on a busy machine
            return self._fail("interrupted", EXIT_INTERRUPTED)
        return self._fail(f"error: {self.failed}", self.failed.exit_code)

    def _fail(self, message: str, code: int) -> int:
        click.echo(f"{self.name}: {' '.join(message.split())}", err=True)
        return code


def program(name: str, text: str, later: Mapping[str, str], configure: Configure | None = None) -> CommandGroup:
    """Return the command `name`, with --help and --version, the commands `later`, and the configuration's reader."""
    settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
    group = CommandGroup(
        name,
        later=later,
        configure=configure,
        help=text,
        epilog=EXIT_CODES,
        context_settings=settings,
        no_args_is_help=True,
    )
    return click.version_option(fdt.__version__, message="%(prog)s %(version)s")(group)


def print_note(ctx: click.Context, text: str) -> None:
    """Print a line for the user on stderr."""
    click.echo(f"{ctx.find_root().info_name}: {text}", err=True)


def usage_error(error: click.ClickException) -> UsageError:
    """Return an error of click's as one of this project's."""
    return UsageError(_unknown(error) if isinstance(error, click.NoSuchOption) else error.format_message())


def _unknown(error: click.NoSuchOption) -> str:
    """Return the line for an unknown option: the nearest one, where the script's arguments stand, and the help."""
    assert error.ctx is not None
    command, given = error.ctx.command, error.option_name
    names = [name for param in command.get_params(error.ctx) for name in param.opts]
    near = [name for name in names if name.startswith(given)] or get_close_matches(given.lower(), names, 1, 0.75)
    hints = [f"did you mean {near[0]}?" if near else "", getattr(command, "arguments_of_script", "")]
    listed = " ".join(hint + ("" if hint.endswith("?") else ";") for hint in hints if hint)
    return f"no such option. Received: {given}; {listed} `{error.ctx.command_path} --help` lists the options"


def _whose(command: str, script: str, names: list[str]) -> str:
    listed = ", ".join(names)
    return f"{listed} after the script: an argument of the script; for this command: {command} {names[0]} ... {script}"
