"""The start of the command `hfdt`, by its console script or by `python -m hfdt`."""

import signal


def main() -> None:
    """Run the command.

    Python's handler of SIGINT raises in any import, where the exception can be lost. Until the command has its own
    handlers, which is before it starts a process, SIGINT therefore ends it at once, also in the background of a shell.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from hfdt.cli import main as command

    command()


if __name__ == "__main__":
    main()
