"""Errors that users can correct: printed as one line, without a traceback."""

from typing import Any

EXIT_USAGE = 2
EXIT_RESUME = 75  # EX_TEMPFAIL of sysexits.h: try again later
EXIT_INTERRUPTED = 130
EXIT_CODES = """\b
Exit codes:
  0      done; for run, inspect and attach: the script's own code, whatever it is
  1      an error, in one line; the script raised; verify: different or not proven; doctor: something is missing
  2      the command line, or the configuration, is wrong
  75     preempted: SIGTERM or SIGUSR1 ended a run with --run-dir, and `run --resume` continues it
  130    Ctrl-C
  128+N  ended by signal N: 143 for SIGTERM, 129 for SIGHUP
"""


class PassedThrough(Exception):
    """An error that AutoGraph and Keras let through, where they would replace others by an error with a longer text."""

    ag_pass_through = True
    _keras_call_info_injected = True


class UserError(PassedThrough):
    """An error that a user can correct; the command line prints it as one line.

    The message states the rule that was broken, then `Received:`, then the flag that corrects it.
    """

    exit_code = 1


class UsageError(UserError):
    """The command line is invalid."""

    exit_code = EXIT_USAGE


class CaptureError(UserError):
    """The script's training cannot be sent to workers; raised before training starts."""


class NeedsReplica(CaptureError):
    """The script's training cannot be sent, but every rank can run the script.

    `reason`: what was found, for the line that says that the run starts again. `trained`: variables have been updated.
    """

    def __init__(self, message: str, reason: str, *, trained: bool = False) -> None:
        super().__init__(message, reason)  # a copy is made of these, by pickle and by simpy
        self.reason, self.trained = reason, trained

    def __str__(self) -> str:
        return str(self.args[0])

    def after_training(self) -> "NeedsReplica":
        """Record that the script has already trained, so that its run cannot start again; return this error."""
        self.trained = True
        return self


REMEDY = "`--capture replica` runs the script on every rank"
OTHER_ROWS = "a batch holds tensors with different numbers of rows, so ranks cannot divide it"  # fdt/data/source.py


class TooFew(UserError):
    """Not all members can be started; `room`: how many could."""

    def __init__(self, message: str, room: int) -> None:
        super().__init__(message)
        self.room = room


class ScriptFailed(UserError):
    """A script that was run from Python ended with an exit code other than 0; `result`: what it left."""

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message)
        self.result = result


class WorkerError(UserError):
    """A member of the engine failed or was lost; the message has its rank and the cause."""
