"""The fair queue of jobs: one at a time, in order of arrival, and a caller that gives up."""

import contextlib
import threading
import time

import pytest

from fdt.blobs import LocalBlobs
from fdt.errors import UserError
from fdt.rpc.job_pb2 import JobSpec
from fdt.rpc.session_pb2 import Command, Setup
from fdt.service.client import TrainingClient
from fdt.service.server import FairQueue, serve
from nfdt.engine.coordinator import ServersCoordinator


def test_callers_have_their_turns_in_the_order_in_which_they_came():
    turns, order, asked = FairQueue(), [], []

    def caller(number):
        with turns.turn(lambda: True) as mine:
            order.append((number, mine))

    threads = []
    with turns.turn(lambda: True) as mine:
        assert mine and turns.taken
        for number in range(5):
            threads.append(threading.Thread(target=caller, args=[number]))
            threads[-1].start()
            deadline = time.monotonic() + 60
            while len(turns._waiting) < number + 2:
                assert time.monotonic() < deadline
        with turns.turn(lambda: bool(asked.append(1)) or len(asked) < 2) as mine:
            assert not mine, "it has given up"
        assert order == []
    for thread in threads:
        thread.join(60)
    assert order == [(number, True) for number in range(5)] and not turns.taken


class _Hostless:
    name, workers = "hfdt", 4

    def __init__(self, run_dir):
        self.run_dir, self.blobs = run_dir, LocalBlobs.create()

    def train(self, commands):
        raise UserError("no answer from b, and the other hosts have slots for 2 of 4 workers")


class _Reading(_Hostless):
    def train(self, commands):
        coordinator = ServersCoordinator(4, ["a", "b"], self.blobs)
        yield from (event for command in commands for event in coordinator.from_client(command).events)


@pytest.mark.parametrize(
    ("kind", "said"), [(_Hostless, "no answer from b, and the othe"), (_Reading, "the option restarts of a job m")]
)
def test_members_that_cannot_be_started_and_wrong_options_are_said_in_the_engines_words(run_dir, kind, said):
    engine = kind(run_dir)
    running = serve(engine, f"unix:{engine.blobs.directory}/engine.sock", "right")
    try:
        with contextlib.closing(TrainingClient(running.address, "right")) as client:
            conversation = client.train()
            conversation.send(Command(job="1", setup=Setup(job=JobSpec(options={"restarts": "many"}))))
            (event,) = conversation.events()
            conversation.close()
        assert (event.job, event.failed.message[:30]) == ("1", said)
    finally:
        running.stop()
        engine.blobs.close()
