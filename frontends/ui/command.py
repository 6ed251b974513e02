"""The command `ui`: serves the live page until Ctrl-C."""

import tempfile

import click

from fdt.cli.options import CountType
from fdt.errors import UsageError
from frontends.shared_command import SharedCommand

EXAMPLES = """\b
Examples:
  hfdt ui                print the page's address, with its token, and serve it until Ctrl-C
  hfdt ui --open         also open it in the browser
  hfdt ui --port 8265    on a port of your choice, as for ssh -L 8265:localhost:8265 HOST
"""


@click.command("ui", cls=SharedCommand, epilog=EXAMPLES)
@click.option("--port", type=CountType("a port", 0), default=0, help="Port on loopback.  [default: a free one]")
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
def ui_command(port: int, opens: bool) -> int:
    """Show this user's runs live in the browser: progress, workers, curves; and stop them.

    Runs of both engines are shown, attached and detached. The page is served on loopback, and its address has a token:
    who has it can see and stop the runs.
    """
    from frontends.ui.server import UiServer

    name = str(click.get_current_context().find_root().info_name)
    try:
        server = UiServer(port)
    except (OSError, OverflowError) as error:
        raise UsageError(f"--port must be one that is free, up to 65535. Received: {port}: {error}") from None
    with server, tempfile.NamedTemporaryFile("w", prefix=f"{name}-ui-", suffix=".html") as opened:  # mode 0600
        click.echo(server.url)
        if opens:
            opened.write(f'<meta http-equiv="refresh" content="0; url={server.url}">')
            opened.flush()
            click.launch(opened.name)  # the command line of a browser is no secret, and the token is one
        try:
            server.serve_forever(poll_interval=0.2)
        except (KeyboardInterrupt, SystemExit):
            click.echo(f"{name}: stopped", err=True)
    return 0
