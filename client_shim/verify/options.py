"""The options of `verify` and the option `--verify` of `run`, shared by hfdt and nfdt."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import click

from client_shim.verify.command import VerifyRequest
from client_shim.verify.command import verified as verified_first
from fdt.cli.options import DIRECTORY, FAULTS, REPORTS, TRAINING, CountType, together
from fdt.cli.program import TYPED, option, print_note
from fdt.errors import UsageError

STEPS = 10
_NOT_WITH = ("detach", "resume")
_SAVING = {"--run-dir", "--grace-period", "--commit-every", "--checkpoint-every"}  # nothing is saved
# Workers would join the comparison.
_JOINING = {"--join-at", "--host-discovery-script", "--min-np", "--max-np", "--elastic-timeout"}
# Options of a run that the comparison does not pass on: (with a value, flags).
OF_THE_RUN = (
    {"--verify", "--steps", "--seed", "--log-dir", "--tensorboard", "--timeline", "--profile", *_SAVING, *_JOINING},
    {"-v", "--verbose", "-q", "--quiet", "--no-config", "--json"},
)

_STEPS = f"Number of steps to compare.  [default: {STEPS}]"
steps_option = together(
    option(TRAINING, "--steps", type=CountType("a number of steps"), default=STEPS, metavar="K", help=_STEPS),
    option(REPORTS, "--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else, to stdout."),
)

_VERDICT = "Also write the result as JSON to DIR, the log directory of a run, whose report then shows it."
verdict_option = option(REPORTS, "--log-dir", type=DIRECTORY, metavar="DIR", help=_VERDICT)

_VERIFY = (
    "First run K steps of the script divided and alone, in separate processes, and compare them. A difference "
    "larger than rounding ends the run before it trains."
)
verify_option = option(FAULTS, "--verify", type=CountType("a number of steps"), metavar="K", help=_VERIFY)


def request_of(
    engine: str,
    script: str,
    script_args: Sequence[str],
    steps: int,
    seed: int | None,
    workers: int,
    log_dir: Path | None = None,
) -> VerifyRequest:
    """Return the comparison that the current command asks for."""
    typed = click.get_current_context().meta[TYPED]
    return VerifyRequest(engine, script, script_args, without(typed, *OF_THE_RUN), workers, steps, seed, log_dir)


def verify_first(engine: str, script: str, script_args: Sequence[str], given: dict[str, Any], workers: int) -> None:
    """Run the comparison of `--verify`. Raises UserError where the divided run differs or nothing is proven."""
    if given["verify"] is None:
        return
    for name in _NOT_WITH:
        if given[name]:
            raise UsageError(f"--verify cannot be used with --{name}. Received: both; use `{engine} verify` first")
    from client_shim.replica.run import settle_hashing

    settle_hashing()  # done before the comparison, because it restarts this command
    log_dir = given["log_dir"] or given["run_dir"]
    request = request_of(engine, script, script_args, given["verify"], given["seed"], workers, log_dir)
    line = verified_first(request)
    if not given["quiet"]:
        print_note(click.get_current_context(), line)


def without(typed: Sequence[str], valued: Collection[str], flags: Collection[str]) -> Sequence[str]:
    """Return the options `typed` without those named, in either spelling (`--steps 5`, `--steps=5`)."""
    kept: list[str] = []
    waiting = False
    for argument in typed:
        name = argument.partition("=")[0]
        if waiting:
            waiting = False
        elif name in valued:
            waiting = "=" not in argument
        elif argument not in flags:
            kept.append(argument)
    return kept
