"""What a reporter keeps of an epoch, and of the reports within it: nothing. A run may have any number of epochs."""

import sys

import pytest

from fdt.report import JobSummary
from fdt.report.progress import Plain
from fdt.report.records import DetachedReporter, Jsonl
from fdt.report.summary import Summary
from fdt.rpc.session_pb2 import EpochEnd, Event, Progress

EPOCHS = 1000
REPORTERS = {
    "summary": lambda path: Summary("nfdt", 2, ""),
    "records.jsonl": lambda path: Jsonl(path, 2),
    "lines": lambda path: Plain(),
    "detached": lambda path: DetachedReporter(True, lambda said: None),
}


@pytest.mark.parametrize("name", REPORTERS)
def test_a_reporter_keeps_nothing_of_an_epoch(tmp_path, name, capsys):
    reporter = REPORTERS[name](tmp_path)
    reporter.job(JobSummary("j", epochs=2 * EPOCHS))
    train(reporter, 0)
    before = sys.getallocatedblocks()
    train(reporter, EPOCHS)
    assert sys.getallocatedblocks() - before < EPOCHS / 2  # what Python itself caches is less
    reporter.close()


def train(reporter, first):
    for epoch in range(first, first + EPOCHS):
        reporter.epoch_begin(epoch)
        reporter.event(Event(rank=1, progress=Progress(epoch=epoch, step=epoch, samples=epoch, logs={"loss": epoch})))
        extra = {"staleness_mean": epoch + 0.5, "staleness_median": epoch, "staleness_max": epoch}
        end = EpochEnd(epoch=epoch, steps=1000 + epoch, samples=epoch, seconds=1.5, extra=extra)
        end.workers.add(rank=1, steps=epoch, samples=epoch)
        reporter.event(Event(epoch_end=end))
        reporter.epoch_end(epoch, {"loss": float(epoch)})
