"""`hfdt.fit` and `nfdt.fit`: they train a model of this process on workers, as `run` trains that of a script."""

import contextlib
import importlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import click

from client_shim import script
from fdt.cli.program import COMMAND, TYPED, Command, usage_error
from fdt.errors import UsageError
from frontends.api import option_argv

# They concern a script, which is not there.
OF_SCRIPTS = ("run_dir", "resume", "detach", "verify", "capture", "allow_replicated", "module")
_TRAINING = threading.Lock()


def fit(engine: str, model: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:
    """Train `model` on workers; see hfdt.fit.

    Args:
        engine: "hfdt" or "nfdt".
        model: A compiled model of Keras 3 or tf_keras.
        args: x and y, where given.
        given: Arguments of Keras's `fit`, and options of the command `run`.

    Returns:
        Keras's History.
    """
    if not hasattr(model, "fit"):
        raise UsageError(f"{engine}.fit needs a model of Keras. Received: {type(model).__name__}")
    of_keras = inspect.signature(model.fit).parameters
    for_keras = {name: value for name, value in given.items() if name in of_keras}
    ours = {name: value for name, value in given.items() if name not in of_keras}
    for name in OF_SCRIPTS:
        if ours.get(name):
            raise UsageError(f"{name} is for scripts: `{engine} run`, or {engine}.run. {engine}.fit trains a model")
    if script.RUNNING:
        raise UsageError(f"{engine}.fit starts workers of its own. Under `run` call the model's own fit instead")
    busy = f"{engine}.fit trains one model at a time; another call of this process has not returned"
    with alone(_TRAINING, busy):
        return _trained(engine, option_argv(engine, ours, of_keras), lambda: model.fit(*args, **for_keras), model)


@contextlib.contextmanager
def alone(training: threading.Lock, refusal: str) -> Iterator[None]:
    """Hold the lock. Raise UsageError where this process already trains: its patches of Keras serve one `fit`."""
    if not training.acquire(blocking=False):
        raise UsageError(refusal)
    try:
        yield
    finally:
        training.release()


def _trained(engine: str, argv: list[str], call: Callable[[], Any], model: Any) -> Any:
    from client_shim.fit import fit_remotely
    from client_shim.imports import intercepted
    from client_shim.state import ScriptRun
    from fdt.cli.run import requested, run

    cli = importlib.import_module(f"{engine}.cli")
    ctx = _parsed(cli.main, argv)
    with ctx.scope():
        cli.checked(ctx.params)
        settings, make_engine = cli.engine_of(ctx.params)
        ctx.meta[COMMAND] = [f"{engine}.fit", *argv]
        request = replace(requested(engine, "", ctx.params), own_summary=not ctx.params["verbose"])
    history: list[Any] = []
    thread = threading.get_ident()

    def train(client: Any, reporters: Any) -> int:
        state = ScriptRun(client, settings, reporters)

        def remotely(original: Any, trained: Any, args: Any, kwargs: Any) -> Any:
            if trained is not model or threading.get_ident() != thread:
                return original(trained, *args, **kwargs)  # a callback's, or another thread's
            return fit_remotely(state, original, trained, args, kwargs)

        with intercepted(remotely):
            history.append(call())
        return 0

    run(request, make_engine, train)
    return history[0]


def _parsed(group: Any, argv: list[str]) -> click.Context:
    """Return the context of the command `run` with these options, those of the configuration included."""
    command = group.commands["run"]
    ctx = click.Context(command, info_name="run", parent=click.Context(group, info_name=group.name))
    try:
        Command.parse_args(command, ctx, argv)
    except click.ClickException as error:
        raise usage_error(error) from None
    ctx.meta[TYPED] = argv
    return ctx
