"""Options of a job (JobSpec.options): strings, "1" for a flag."""

from collections.abc import Mapping


def is_on(options: Mapping[str, str], name: str) -> bool:
    """Return whether the flag `name` is set."""
    return options.get(name, "") in ("1", "true", "True")
