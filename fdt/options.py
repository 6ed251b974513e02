"""What JobSpec.options says of a job: strings, "1" for a flag."""

from collections.abc import Mapping


def is_on(options: Mapping[str, str], name: str) -> bool:
    """Is this flag among them?"""
    return options.get(name, "") in ("1", "true", "True")
