"""`run` for a script that trains by `fit`, as both commands have it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import client_shim
from client_shim.settings import Settings
from client_shim.trains import may_fit
from fdt.cli import detach
from fdt.cli.request import RunRequest
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
    """Run the script, each `fit` of it on the engine; its exit code. Kept and detached where that is asked for.

    `early`: the engine starts before the script, even where no `fit` is seen in that.
    """
    if detach.due(request):
        return detach.start(request)

    told = settings.own_loops  # by --capture extract, that training is `fit`
    request = replace(request, early=early or told or may_fit(request.script))

    def train(directory: "RunDir | None") -> int:
        def run_script(client: "Client", reporters: "Reporters") -> int:
            return client_shim.run(request.script, words, client, settings, reporters, directory)

        return run_with_engine(request, make_engine, run_script)

    return kept(request, words, train)
