"""Ranks of a replicated script under HFDT are bound to their part of the cores, as its workers are."""

import contextlib
import json
import os
import threading
from dataclasses import asdict

import pytest
from click.testing import CliRunner

from client_shim.replica import command, follow, run
from client_shim.replica.rank import VARIABLE, RankConfig, ReplicatedScript
from fdt.environment import bound_to_share
from hfdt.cli import main as hfdt

BOUND = {"bind_to": "cores"}


@pytest.mark.parametrize(("given", "chosen"), [([], "cores"), (["--bind-to", "none"], "none")])
def test_the_command_asks_for_it(given, chosen, tmp_path, monkeypatch):
    script, asked = tmp_path / "tape.py", []
    script.write_text("optimizer.apply_gradients(zip(gradients, variables))")
    monkeypatch.setattr(command, "run", lambda request, words, seed, options, *rest: asked.append(options) or 0)
    assert CliRunner().invoke(hfdt, ["run", *given, str(script)]).exit_code == 0
    assert asked == [{"bind_to": chosen}]


@pytest.mark.parametrize(
    ("options", "cores"), [(BOUND, {2, 3}), ({"bind_to": "none"}, {2, 3, 4, 5}), ({}, {2, 3, 4, 5})]
)
def test_rank_0_is_bound_once_the_others_are_started(options, cores, tmp_path, monkeypatch):
    """And is free again when they are gone."""
    mine, at_start = [{2, 3, 4, 5}], []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: mine[-1])
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: mine.append(set(cpus)))
    monkeypatch.setattr("fdt.environment._place", lambda cpu: (0, cpu, cpu))
    monkeypatch.setattr(run, "LocalProcesses", lambda *_: at_start.append(mine[-1]) or NoFollowers())
    with run.host(ReplicatedScript("x.py", [], 0, options, "nobody"), tmp_path, 2):
        assert mine[-1] == cores
    assert at_start == [{2, 3, 4, 5}]
    assert mine[-1] == {2, 3, 4, 5}


@pytest.mark.parametrize(("options", "seats"), [(BOUND, [(1, 2)]), ({}, [])])
def test_the_others_bind_themselves(options, seats, tmp_path, monkeypatch):
    bound = []
    task = RankConfig(str(tmp_path), str(tmp_path / "1"), 1, 2, 0, options, "/x", "x", [])
    monkeypatch.setenv(VARIABLE, json.dumps(asdict(task)))
    monkeypatch.setattr(follow, "bind_to_share", lambda *seat: bound.append(seat))
    monkeypatch.setattr(follow, "_end_with_parent", lambda task: None)
    monkeypatch.setattr(follow, "PeerGroup", lambda *_, **__: None)
    assert follow._come() == (task, None)
    assert bound == seats


def test_threads_that_are_there_already_keep_to_them_too():
    before, kept, over = os.sched_getaffinity(0), [], threading.Event()
    with contextlib.ExitStack() as stack:
        thread = threading.Thread(target=over.wait)
        thread.start()
        stack.callback(thread.join)
        stack.callback(over.set)
        with bound_to_share(0, len(before)):
            kept = [os.sched_getaffinity(n) for n in (0, thread.native_id)]
        assert [os.sched_getaffinity(n) for n in (0, thread.native_id)] == [before, before]
    assert kept[0] == kept[1] and len(kept[0]) == 1


class NoFollowers:
    def stop(self, grace_s=0.0):
        pass

    def exits(self):
        return []
