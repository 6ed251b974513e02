"""What a recorded run has to know; it travels in the environment."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "FDT_VERIFY"
RECORDS = "records.jsonl"
PRINTED, ERRORS = "printed", "errors"  # the run's standard output and standard error


def values_file(step: int) -> str:
    """Name of the file of a step's arrays: float64 of shape [2, values], the variables and their update."""
    return f"step-{step}.npy"


@dataclass(frozen=True)
class RecordingPlan:
    """One recorded run.

    Args:
        root: Directory of the whole comparison; the process that reads the records removes it.
        name: The run's directory below `root`.
        steps: How many steps are recorded; the script ends behind the last.
        seed: Of what the script draws without a seed of its own.
        parent: Process id of the comparison. The run ends when that process does.
        shaken: Move the weights by one unit in the last place before they are trained.
        script: As the user named it; empty where the command line of the run names it.
        words: The script's own.
    """

    root: str
    name: str
    steps: int
    seed: int
    parent: int
    shaken: bool = False
    script: str = ""
    words: tuple[str, ...] = ()

    @property
    def directory(self) -> Path:
        """Where the run's records are."""
        return Path(self.root) / self.name

    @property
    def scratch(self) -> Path:
        """Where files go that the script writes."""
        return self.directory / "scratch"

    def environment(self) -> dict[str, str]:
        """The variable that `take` reads."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def take(cls) -> "RecordingPlan | None":
        """The plan of this process, removed from its environment; None where nothing is to be recorded."""
        text = os.environ.pop(VARIABLE, None)
        if text is None:
            return None
        given = json.loads(text)
        return cls(**{**given, "words": tuple(given["words"])})
