"""Errors that are the user's to mend: one clear line, never a traceback."""

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class UserError(Exception):
    """What is wrong, what was received, what to do; printed as one line by the command line.

    The message follows the house rule: the rule that was broken, then `Received:`, then the flag that mends it.
    """

    exit_code = 1


class UsageError(UserError):
    """The command line itself is wrong."""

    exit_code = EXIT_USAGE


class CaptureError(UserError):
    """The script's training cannot be carried to workers; said before training starts."""


class TooFew(UserError):
    """Not all members can be started; `room`: how many could."""

    def __init__(self, message: str, room: int) -> None:
        super().__init__(message)
        self.room = room


class WorkerError(UserError):
    """A member of the engine failed or was lost; names its rank and the cause."""
