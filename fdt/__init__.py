"""The base of both engines: the job, its data, the worker's program, launchers, reports, errors."""

import sys

__version__ = "0.1.0"
PACKAGES = ("client_shim", "fdt", "frontends", "hfdt", "nfdt", "replica")  # of this project


def _working_directory_last() -> None:
    """Move the working directory, which `python -m` of ours puts first, to the end of sys.path: it hides no library.

    sys.argv[0] is "-m" while Python imports the packages around the module that it runs.
    """
    given = sys.orig_argv
    ours = sys.argv[:1] == ["-m"] and "-m" in given and given[given.index("-m") + 1].partition(".")[0] in PACKAGES
    if ours and not getattr(sys.flags, "safe_path", False):
        sys.path.append(sys.path.pop(0))


_working_directory_last()
