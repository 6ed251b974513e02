"""Commands of both programs, whose examples show the name of the called program; and text tables."""

from collections.abc import Sequence

import click

from fdt.cli.program import Command


class SharedCommand(Command):
    """A command whose `epilog` has examples of `hfdt`; the help of `nfdt` shows them with its own name."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        written = self.epilog
        try:
            self.epilog = written and written.replace("hfdt", str(ctx.find_root().info_name))
            super().format_epilog(ctx, formatter)
        finally:
            self.epilog = written


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
