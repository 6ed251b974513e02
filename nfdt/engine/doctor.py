"""Command `nfdt doctor`: a check of this machine's requirements for NFDT."""

from typing import Any

import click

from fdt.cli.hosts import chosen_hosts, hosts_options, report_hosts
from fdt.doctor import common_checks, report


@click.command("doctor")
@hosts_options
def doctor_command(**given: Any) -> None:
    """Check what NFDT needs on this machine, and print what to do."""
    hosts = chosen_hosts(given)
    if not (report_hosts("nfdt", hosts) if hosts else report("nfdt doctor", common_checks())):
        raise SystemExit(1)
