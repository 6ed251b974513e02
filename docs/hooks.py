"""Prepares the command line for the reference pages: the site lists only commands that are loaded."""

import click

from hfdt.cli import main as hfdt
from nfdt.cli import main as nfdt


def on_startup(**_: object) -> None:
    """Load every command of both programs, and show the examples of their help as they are typed."""
    for program in (hfdt, nfdt):
        context = click.Context(program)
        for name in program.list_commands(context):
            program.commands[name] = program.get_command(context, name)
        text, _, examples = (program.help or "").partition("\b\nExamples:\n")
        program.help = f"{text}\n```text\n{examples}\n```\n"
