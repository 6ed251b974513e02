"""The command `queue`: it lists the jobs of a pool that `serve` started, and cancels them."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from fdt.cli.options import SERVER, Address, CountType, tls_options, token_option
from fdt.cli.program import option
from fdt.errors import UsageError, UserError
from frontends.settings import config_options
from frontends.shared_command import SharedCommand, print_table

EXAMPLES = """\b
Examples:
  hfdt queue --server 127.0.0.1:7070 --token-file token               list the jobs of the pool
  hfdt queue --server 127.0.0.1:7070 --token-file token --cancel 12   cancel job 12
"""


@click.command("queue", cls=SharedCommand, epilog=EXAMPLES)
@option(SERVER, "--server", type=Address(), metavar=Address.name, help="The server that `serve` started.")
@token_option
@tls_options
@click.option(
    "--cancel", "cancelled", type=CountType("a job's number"), multiple=True, metavar="JOB", help="Cancel this job."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else, to stdout.")
@config_options
def queue_command(
    server: str | None, token_file: Path | None, cancelled: Sequence[int], as_json: bool, **tls: Path | None
) -> None:
    """List the jobs of a pool, or cancel some of them.

    A job is one `fit` of `run --server`. REASON says why a job waits. Quota: its user already has as many slots as one
    user may have. Resources: it is the next job, and too few slots are free. Priority: other jobs come first.
    """
    if server is None:
        raise UsageError("`queue` needs a server: give --server HOST:PORT, as to `run`")
    from fdt.rpc import training_pb2 as pb

    with _pool(server, token_file, tls) as call:
        for number in cancelled:
            call("Cancel", pb.CancelRequest(number=number))
            if not as_json:
                click.echo(f"job {number} is cancelled")
        if as_json:
            click.echo(json.dumps(_as_json(call("Queue", pb.QueueRequest()))))
        elif not cancelled:
            _show(call("Queue", pb.QueueRequest()))


Call = Callable[[str, Any], Any]


@contextlib.contextmanager
def _pool(address: str, token_file: Path | None, tls: dict[str, Path | None]) -> Iterator[Call]:
    """Yield a function that calls PoolService. It raises UserError where the server refuses."""
    import grpc

    from fdt.rpc.training_pb2_grpc import PoolServiceStub
    from fdt.security.auth import credentials
    from fdt.service.client import CONNECT_TIMEOUT_S, identity, refused, take_token
    from fdt.service.transport import open_channel

    ours = identity(address, tls["tls_cert"], tls["tls_key"], tls["tls_ca"])
    token = take_token(token_file)
    own = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED)

    def call(method: str, request: Any) -> Any:
        try:
            return getattr(stub, method)(request, metadata=credentials(token), timeout=CONNECT_TIMEOUT_S)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise UserError(f"{address} is no pool that `serve` started") from None
            raise (UserError(error.details()) if error.code() in own else refused(address, error)) from None

    with open_channel(address, ours) as channel:
        stub = PoolServiceStub(channel)
        yield call


def _show(queue: Any) -> None:
    from fdt.report import duration, quantity

    rows = [
        (job.number, job.user or "-", job.state, job.priority, job.slots, duration(job.seconds), job.reason, job.name)
        for job in queue.jobs
    ]
    if rows:
        titles = ("JOB", "USER", "STATE", "PRIORITY", "SLOTS", "TIME", "REASON", "NAME")
        print_table([titles, *(list(map(str, row)) for row in rows)])
    click.echo(f"{queue.free} of {quantity(queue.slots, 'slot')} {'is' if queue.free == 1 else 'are'} free")


def _as_json(queue: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {"engine": queue.engine, "slots": queue.slots, "free": queue.free, "user": queue.user}
    names = [field.name for field in queue.DESCRIPTOR.fields_by_name["jobs"].message_type.fields]
    return shown | {"jobs": [{name: getattr(job, name) for name in names} for job in queue.jobs]}
