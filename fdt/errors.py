"""Errors that users can correct: printed as one line, without a traceback."""

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class UserError(Exception):
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

    def __init__(self, message: str, reason: str, *, trained: bool) -> None:
        super().__init__(message)
        self.reason, self.trained = reason, trained


class TooFew(UserError):
    """Not all members can be started; `room`: how many could."""

    def __init__(self, message: str, room: int) -> None:
        super().__init__(message)
        self.room = room


class WorkerError(UserError):
    """A member of the engine failed or was lost; the message has its rank and the cause."""
