"""A check of the order of a client's commands: a job begins with Setup, keeps its name, and ends with Finish."""

from collections.abc import Iterator

from fdt.rpc.session_pb2 import Command

ALLOWED = ("setup", "epoch", "step", "end_epoch", "evaluate", "feed", "finish")  # only the engine sends Exit


class CommandOrder:
    """The commands of one job, up to the first that is out of order; `fault` is then the reason, otherwise ""."""

    def __init__(self, commands: Iterator[Command]) -> None:
        self._commands = commands
        self._job = ""
        self.fault = ""

    def __iter__(self) -> Iterator[Command]:
        for command in self._commands:
            self.fault = self._fault_of(command)
            if self.fault:
                return
            self._job = command.job
            yield command

    def _fault_of(self, command: Command) -> str:
        kind = command.WhichOneof("kind")
        if kind not in ALLOWED:
            return f"a client's command must be one of {', '.join(ALLOWED)}. Received: {kind or 'none'}"
        if not command.job:
            return "a command must name its job. Received: none"
        if not self._job:
            return "" if kind == "setup" else f"a job must begin with setup. Received: {kind}"
        if kind == "setup":
            return "a job must be set up once; another has a call of its own. Received: setup again"
        return "" if command.job == self._job else f"a call is about one job. Received: {command.job!r} too"
