"""Prepares the command line for the reference pages (the site lists only loaded commands); adds algorithms' pages."""

import sys
from pathlib import Path
from typing import Any

import click
from mkdocs.structure.files import File, Files

from hfdt.cli import main as hfdt
from nfdt.cli import main as nfdt

TABLES = "<!-- tables of the tournament -->"


def on_startup(**_: object) -> None:
    """Load every command of both programs, and show the examples of their help as they are typed."""
    for program in (hfdt, nfdt):
        context = click.Context(program)
        for name in program.list_commands(context):
            program.commands[name] = program.get_command(context, name)
        text, _, examples = (program.help or "").partition("\b\nExamples:\n")
        program.help = f"{text}\n```text\n{examples}\n```\n"


def on_files(files: Files, config: Any) -> Files:
    """Add the page of each algorithm."""
    sys.path.append(str(Path(__file__).parent))
    from algorithm_pages import pages

    for path, text in pages():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put the tables of the tournament where a page asks for them."""
    if TABLES not in markdown:
        return markdown
    from algorithm_pages import tournament

    return markdown.replace(TABLES, tournament())
