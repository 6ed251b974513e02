"""A command of both programs, whose examples have the name of the program that was called."""

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
