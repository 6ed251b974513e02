"""What both engines need: the job, its data, the program a worker rebuilds, launch, reports, errors."""

__version__ = "0.1.0"
PACKAGES = ("client_shim", "fdt", "hfdt", "nfdt", "replica")  # of this project
