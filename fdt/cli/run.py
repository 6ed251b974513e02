"""The command `run`: run the script as a client of an engine, end all processes however it ends, and keep its logs."""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from fdt import rpc
from fdt.cli import RunRequest, file_of
from fdt.cli.options import TLS_OPTIONS
from fdt.cli.program import COMMAND, TYPED
from fdt.environment import quiet_import
from fdt.errors import EXIT_INTERRUPTED, NeedsReplica, UsageError, UserError
from fdt.security import check_directory
from fdt.signals import GRACE_S, Ended

if TYPE_CHECKING:  # gRPC and NumPy are slow to import, and --help needs neither
    from fdt.blobs import Blobs
    from fdt.report import Reporter, Reporters
    from fdt.rpc.training_pb2 import HelloReply
    from fdt.runs import DetachedRun
    from fdt.service.client import Conversation, TrainingClient
    from fdt.service.server import Engine

Client: TypeAlias = "TrainingClient | LazyClient"
MakeEngine = Callable[[Path], "Engine"]
RunScript = Callable[["Client", "Reporters"], int]  # the script's exit code
RunReplicas = Callable[[Path, "Reporters"], int]  # its argument: the directory of the ranks' logs
NOT_KEPT = "not kept (--log-dir DIR keeps them)"
UNASKED_BYTES = 64_000_000  # of records for the live page alone, without --log-dir
_MEMBER_LOG = re.compile(r"(worker|server)-\d+\.log|mpirun(-server)?\.log")  # the only files that are removed


@dataclass
class Logs:
    """A log directory. `keep`: it is not removed at the end."""

    directory: Path
    keep: bool = False

    def keep_files(self) -> None:
        """Do not remove the directory: the user was given its name."""
        self.keep = True


@contextlib.contextmanager
def log_directory(engine: str, chosen: Path | None, *, resumed: bool = False) -> Iterator[Logs]:
    """Yield the user's --log-dir, or a private directory that is removed unless the run failed and has logs.

    `resumed`: the logs in --log-dir are this run's own.
    """
    if chosen is not None:
        yield Logs(prepared(chosen, resumed=resumed), keep=True)
        return
    logs = Logs(Path(tempfile.mkdtemp(prefix=f"{engine}-")))
    try:
        yield logs
    except UserError as error:
        logs.keep |= not isinstance(error, NeedsReplica)  # a refused capture's line says all
        raise
    finally:
        if not (logs.keep and any(file.stat().st_size for file in logs.directory.glob("*.log"))):
            shutil.rmtree(logs.directory, ignore_errors=True)


def prepared(directory: Path, *, resumed: bool = False) -> Path:
    """Make `directory`, remove the members' logs of an earlier run, and return its absolute path.

    Args:
        directory: The directory.
        resumed: The logs there are this run's: keep them.

    Raises:
        UserError: The directory cannot be made or written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        check_directory(directory, "--log-dir")
        for file in directory.iterdir():
            if not resumed and _MEMBER_LOG.fullmatch(file.name):
                file.unlink()
    except OSError as error:
        raise UserError(f"--log-dir cannot be written: {error}") from None
    return directory.resolve()


_OUTPUT = ("log_dir", "tensorboard", "timeline", "verbose", "quiet", "detach")
REQUEST = (*TLS_OPTIONS, "workers", "server", "priority", "token_file", *_OUTPUT)  # options that a RunRequest has


def requested(engine: str, script: str, given: Mapping[str, Any]) -> RunRequest:
    """Return the RunRequest of the current command's options. --run-dir is also the default of --log-dir."""
    kept = given["run_dir"] or given["resume"]
    grace_s = given.get("grace_period")
    if grace_s is not None and kept is None:
        raise UsageError("--grace-period needs --run-dir, which saves the run. Received: --grace-period alone")
    chosen = {name: given[name] for name in REQUEST} | {"log_dir": given["log_dir"] or kept}
    chosen["grace_s"] = GRACE_S if grace_s is None else grace_s
    meta = click.get_current_context().meta
    recorded = {"typed": meta[TYPED], "command": meta.get(COMMAND, ())}
    return RunRequest(engine, **chosen, **recorded, script=script, run_dir=kept, resumed=given["resume"] is not None)


def run(request: RunRequest, make_engine: MakeEngine, run_script: RunScript) -> int:
    """Run the script; return its exit code.

    Args:
        request: The request.
        make_engine: Makes the engine, given the directory of the members' logs; not called with --server.
        run_script: Runs the script with a client and reporters; returns its exit code.
    """
    from fdt.cli import detach

    request, noted = detach.taken(request)
    rpc.set_up()
    with log_directory(request.engine, request.log_dir, resumed=request.resumed) as logs:
        with _connected(request, make_engine, logs.directory) as client, quiet_import():
            return _run_script(request, client, run_script, logs, noted)


def run_replicas(request: RunRequest, workers: int, run_script: RunReplicas) -> int:
    """Run a script that every rank runs, without an engine; return its exit code."""
    from fdt.cli import detach

    request, noted = detach.taken(request)
    with log_directory(request.engine, request.log_dir) as logs, quiet_import():
        where = NOT_KEPT if request.log_dir is None else str(logs.directory)
        return _reported(request, workers, where, logs, lambda reporters: run_script(logs.directory, reporters), noted)


def _connected(request: RunRequest, make_engine: MakeEngine, logs: Path) -> AbstractContextManager["Client"]:
    if request.server is None:
        start = partial(_embedded, make_engine, logs)
        return start() if request.early else lazy_client(start)
    from fdt.rpc.session_pb2 import JobRequest
    from fdt.service.client import identity, remote, take_token

    ours = identity(request.server, request.tls_cert, request.tls_key, request.tls_ca)
    token = take_token(request.token_file)
    name = file_of(request.script).name if request.script else ""
    asked = JobRequest(workers=request.workers or 0, priority=request.priority or 0, name=name)
    return remote(request.server, token, request.engine, asked, ours)


def _embedded(make_engine: MakeEngine, logs: Path) -> AbstractContextManager["TrainingClient"]:
    from fdt.service.client import embedded

    return embedded(make_engine(logs))


def _run_script(
    request: RunRequest, client: "Client", run_script: RunScript, logs: Logs, noted: "DetachedRun | None"
) -> int:
    workers = 0 if isinstance(client, LazyClient) else client.hello.workers  # `hello` would start a lazy engine
    where = NOT_KEPT if request.log_dir is None and not request.verbose else str(logs.directory)
    if request.server is not None:
        where = f"{client.hello.run_dir} (the server's)"
    return _reported(request, workers, where, logs, lambda reporters: run_script(client, reporters), noted)


def _reported(
    request: RunRequest,
    workers: int,
    where: str,
    logs: Logs,
    body: Callable[["Reporters"], int],
    noted: "DetachedRun | None",
) -> int:
    """Call `body` with reporters, close them, and write the report. `workers`: 0 where none is started yet."""
    from fdt.cli.detach import registered
    from fdt.report import Reporters
    from fdt.report.summary import Summary

    summary = Summary(request.engine, workers, where, quiet=request.quiet or request.own_summary)
    code, why, failed, refused = 1, "", True, False
    with registered(request, noted, logs.directory) as run:
        reporters = Reporters([*_reporters(request, workers, logs, run), summary])
        try:
            _note_logs(request, workers, logs, reporters)
            code = body(reporters)
            if code == EXIT_INTERRUPTED:
                raise KeyboardInterrupt
            failed = code == 1  # a script's own sys.exit(3) is no error
            if failed:  # an error of the script is printed; nothing that reads as success follows it
                summary.silence()
            return code
        except BaseException as error:
            summary.silence()
            code, why = _how_it_ended(error)
            refused = isinstance(error, NeedsReplica)
            raise
        finally:
            try:
                if summary.failed and not refused:
                    logs.keep_files()
                reporters.ended(code, why)
                reporters.close()
            finally:  # of a second Ctrl-C, too
                if request.write_report is not None and request.log_dir is not None:
                    request.write_report(request.engine, logs.directory, request.quiet or failed)


def _note_logs(request: RunRequest, workers: int, logs: Logs, reporters: "Reporters") -> None:
    """With --verbose, keep the workers' logs and print where they are."""
    from fdt.report import quantity

    if request.verbose and request.server is None:
        logs.keep_files()
        whose = f"{quantity(workers, 'worker')}; their" if workers else "the workers'"
        reporters.note(f"{whose} logs are in {logs.directory}")


def _how_it_ended(error: BaseException) -> tuple[int, str]:
    """Return the exit code that `error` leads to, and its line."""
    if isinstance(error, Ended):
        return error.code, error.message
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED, ""
    return getattr(error, "exit_code", 1), " ".join(str(error).split())


def _reporters(request: RunRequest, workers: int, logs: Logs, noted: "DetachedRun | None") -> list["Reporter"]:
    from fdt.report import RECORDS_VARIABLE, Screen

    chosen: list[Reporter] = [Screen(request.engine, adds_steps=request.engine == "nfdt", quiet=request.quiet)]
    if request.tensorboard is not None:  # it and --timeline first: they may raise, and leave no file open
        from fdt.report.records import TensorBoard

        chosen.append(TensorBoard(request.tensorboard))
    if request.timeline is not None:
        from fdt.timeline import Trace

        chosen.append(Trace(request.timeline, chosen[0].note))
    if request.log_dir is not None:
        chosen.append(_records(request, workers, logs.directory))
    elif noted is not None:
        with contextlib.suppress(OSError):  # of no use but to the live page
            chosen.append(_records(request, workers, logs.directory, UNASKED_BYTES))
    if asked := os.environ.pop(RECORDS_VARIABLE, None):
        chosen.append(_records(request, workers, Path(asked)))
    if noted is not None:
        from fdt.report.records import DetachedReporter

        chosen.append(DetachedReporter(request.engine == "nfdt", partial(noted.write, "progress")))
    return chosen


def _records(request: RunRequest, workers: int, directory: Path, limit: int = 0) -> "Reporter":
    from fdt.report.records import Jsonl, describe_run
    from fdt.runs import ProcessIdentity, space

    process = ProcessIdentity.of(os.getpid())
    about = describe_run(
        request.engine,
        command=request.typed_command,
        script=os.path.abspath(file_of(request.script)) if request.script else "",
        timeline="" if request.timeline is None else os.path.abspath(request.timeline),
        resumed=request.resumed,
        process=None if process is None else asdict(process),
        space=space(),
    )
    return Jsonl(directory, workers, append=request.resumed, about=about, limit=limit)


class LazyClient:
    """A TrainingClient that is created at its first use."""

    def __init__(self, connect: "Callable[[], TrainingClient]") -> None:
        self._connect = connect

    @cached_property
    def _client(self) -> "TrainingClient":
        return self._connect()

    @property
    def hello(self) -> "HelloReply":
        return self._client.hello

    @property
    def blobs(self) -> "Blobs":
        return self._client.blobs

    def train(self) -> "Conversation":
        return self._client.train()


@contextlib.contextmanager
def lazy_client(connect: "Callable[[], AbstractContextManager[TrainingClient]]") -> Iterator[LazyClient]:
    """Yield a client that `connect` creates when it is needed, and ends with the context."""
    with contextlib.ExitStack() as stack:
        yield LazyClient(lambda: stack.enter_context(connect()))
