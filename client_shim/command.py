"""The `run` command's path for a script that trains by `fit`, shared by hfdt and nfdt."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import client_shim
from client_shim.settings import Settings
from client_shim.trains import may_fit
from fdt.cli import detach
from fdt.cli.arguments import RunRequest
from fdt.cli.resume import kept
from fdt.cli.run import MakeEngine
from fdt.cli.run import run as run_with_engine

if TYPE_CHECKING:
    from fdt.cli.run import Client
    from fdt.report import Reporters
    from fdt.rundir import RunDir


def run(
    request: RunRequest, words: Sequence[str], settings: Settings, make_engine: MakeEngine, *, early: bool = False
) -> int:
    """Run the script with each `fit` of it on the engine; save or detach the run where the request asks for it.

    Args:
        request: The options of the command line.
        words: Arguments of the script.
        settings: The command line's decisions about capture.
        make_engine: Makes the engine that trains.
        early: Start the engine before the script even where its source shows no `fit`.

    Returns:
        The script's exit code.
    """
    if detach.due(request):
        return detach.start(request)

    told = settings.own_loops  # `--capture extract` states that training is done by `fit`
    request = replace(request, early=early or told or may_fit(request.script))

    def train(directory: "RunDir | None") -> int:
        def run_script(client: "Client", reporters: "Reporters") -> int:
            return client_shim.run(request.script, words, client, settings, reporters, directory)

        return run_with_engine(request, make_engine, run_script)

    return kept(request, words, train)
