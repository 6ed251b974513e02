"""Configuration of a recorded run, passed in the environment."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "FDT_VERIFY"
RECORDS = "records.jsonl"
VERDICT = "verify.json"  # what `report` shows, in the log directory of a run
PRINTED, ERRORS = "printed", "errors"  # the run's standard output and standard error


def values_file(step: int) -> str:
    """Return the file name of a step's arrays: float64 of shape [2, values], the variables and their update."""
    return f"step-{step}.npy"


@dataclass(frozen=True)
class RecordingPlan:
    """One recorded run.

    Args:
        root: Directory of the whole comparison; the process that reads the records removes it.
        name: The run's directory below `root`.
        steps: The number of recorded steps; the script ends after the last.
        seed: The seed of all numbers that the script draws without a seed of its own.
        parent: Process id of the comparison. The run ends when that process does.
        shaken: Move the weights by one unit in the last place before they are trained.
        script: As the user named it; empty where the command line of the run names it.
        script_args: Arguments of the script.
    """

    root: str
    name: str
    steps: int
    seed: int
    parent: int
    shaken: bool = False
    script: str = ""
    script_args: tuple[str, ...] = ()

    @property
    def directory(self) -> Path:
        """The directory of the run's records."""
        return Path(self.root) / self.name

    @property
    def scratch(self) -> Path:
        """The folder of the files that the script writes."""
        return self.directory / "scratch"

    def environment(self) -> dict[str, str]:
        """Return the environment variable that `take` reads."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def take(cls) -> "RecordingPlan | None":
        """Return this process's plan and remove it from the environment; None where nothing is to be recorded."""
        text = os.environ.pop(VARIABLE, None)
        if text is None:
            return None
        given = json.loads(text)
        return cls(**{**given, "script_args": tuple(given["script_args"])})
