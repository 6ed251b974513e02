"""The base of both engines: the job, its data, the worker's program, launchers, reports, errors."""

__version__ = "0.1.0"
PACKAGES = ("client_shim", "fdt", "frontends", "hfdt", "nfdt", "replica")  # of this project
