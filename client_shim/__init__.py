"""Client side of a run: run an unmodified script in this process and send each `fit` to an engine of workers."""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from client_shim.imports import OwnLoop, intercepted, own_loops_refused
from client_shim.preemption import Preemption
from client_shim.replica.steps import where
from client_shim.script import run_script
from client_shim.state import ScriptRun, Settings
from client_shim.verify.recording import recorded
from fdt.errors import NeedsReplica
from fdt.report import Reporter, Reporters

if TYPE_CHECKING:
    from fdt.rundir import RunDir

__all__ = ["Settings", "run"]


def run(
    script: str,
    argv: Sequence[str],
    client: Any,
    settings: Settings | None = None,
    reporters: Reporter | Sequence[Reporter] = (),
    directory: "RunDir | None" = None,
    preemption: Preemption | None = None,
) -> int:
    """Run `script` as `__main__` in this process and train every `fit` of it on the client's engine.

    Args:
        script: Path of the user's Python file.
        argv: Arguments of the script, without its name.
        client: An fdt.service.client.TrainingClient that is connected to an engine.
        settings: The command line's decisions about capture; None: the defaults.
        reporters: What receives progress, notes and summaries.
        directory: The run's directory. It keeps checkpoints and holds those to continue from. None: no checkpoints.
        preemption: Handles the signals that preempt a run with a directory.

    Returns:
        The script's exit code.

    Raises:
        UserError: The script or one of its `fit` calls cannot be run; the message is one line.
    """
    state = ScriptRun(
        client, settings or Settings(), _one(reporters), directory=directory, preemption=preemption or Preemption()
    )
    if directory is not None:
        from client_shim.resume.randomness import seed_all

        seed_all(directory.arguments.seed)  # a resumed run must draw the same numbers again

    check = functools.partial(_check_loop, state)
    fit = functools.partial(_fit, state)
    with intercepted(fit, state.settings.seed), own_loops_refused(check), recorded():
        return _ended(state, run_script(script, argv))


def _ended(state: ScriptRun, code: int) -> int:
    """Return the script's exit code. Raises the UserError that the script has caught, if there is one."""
    if code == 0 and (error := state.refused) is not None:
        if isinstance(error, NeedsReplica) and state.trained:  # another run would find what the script has saved
            raise error.after_training()
        raise error
    if code == 0 and not state.fits:
        state.reporters.note("the script called no fit(), so nothing was trained on workers")
    return code


def _fit(
    state: ScriptRun, original: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    from client_shim.fit import fit_remotely  # not before the first `fit`, because a script may never call one

    with state.remembering(model):
        return fit_remotely(state, original, model, args, kwargs)


def _check_loop(state: ScriptRun, name: str) -> None:
    """Raise OwnLoop where gradients must not be applied by the optimizer's method `name`."""
    if not (state.busy or state.settings.own_loops):
        with state.remembering():
            raise OwnLoop(name, where(), trained=state.fits > 0)


def _one(reporters: Reporter | Sequence[Reporter]) -> Reporters:
    if isinstance(reporters, Reporters):
        return reporters
    return Reporters([reporters] if isinstance(reporters, Reporter) else reporters)
