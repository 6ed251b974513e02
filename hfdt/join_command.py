"""Command `hfdt join`: offers slots of this machine to a run."""

from typing import Any

import click

from fdt.cli.hosts import join_arguments, join_credentials
from fdt.cli.program import Command

EXAMPLES = """\b
Examples:
  hfdt run --join-at 7071 --log-dir logs train.py -np 2         a run that further workers can join
  hfdt join 127.0.0.1:7071 --token-file logs/join.token -np 2   two more, until the run ends or Ctrl-C
\b
  hfdt run --join-at node1:7071 --tls-cert node1.pem --tls-key node1.key --tls-ca ca.pem train.py
  hfdt join node1:7071 --token-file join.token --tls-cert me.pem --tls-key me.key --tls-ca ca.pem
                                                                on another host, which node1 reaches by ssh
"""


@click.command("join", cls=Command, epilog=EXAMPLES)
@join_arguments
def join_command(address: str, workers: int, **given: Any) -> int:
    """Offer slots of this machine to a run that has --join-at.

    The run starts workers on them at its next commit, by ssh if this is another host. They leave it at its end or at
    Ctrl-C, and training continues without them.
    """
    from fdt.report import quantity
    from fdt.supervise.joining import JoinConnection

    token, ours = join_credentials("hfdt", address, given)
    call = JoinConnection(address, token, ours, workers, "hfdt")
    try:
        slots = quantity(workers, "slot")
        click.echo(f"hfdt: the run at {address} may use {slots} of this machine; Ctrl-C ends that", err=True)
        while not call.over.wait(0.5):
            pass
        call.check()
    except (KeyboardInterrupt, SystemExit):
        click.echo("hfdt: left the run; training continues without this machine", err=True)
        return 0
    finally:
        call.close()
    click.echo("hfdt: the run has ended", err=True)
    return 0
