"""Command `nfdt doctor`: a check of this machine's requirements for NFDT."""

from typing import Any

import click

from fdt.cli.hosts import chosen_hosts, hosts_options, report_hosts
from fdt.doctor import common_checks, report


@click.command("doctor")
@hosts_options
def doctor_command(**given: Any) -> None:
    """Show what this machine has of what NFDT needs, and what to do about the rest."""
    hosts = chosen_hosts(given)
    if not (report_hosts("nfdt", hosts) if hosts else report("nfdt doctor", common_checks())):
        raise SystemExit(1)
