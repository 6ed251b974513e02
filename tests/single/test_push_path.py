"""The files whose functions run for a push and the pull that answers it: those of docs/architecture.md, at most 12."""

import re
import sys
import threading
from pathlib import Path

import keras
import pytest

from nfdt import compressors
from tests.single.nfdt_cluster import make_model, pushed

ROOT = Path(__file__).parents[2]
PACKAGES = tuple(f"{ROOT / name}/" for name in ("fdt", "nfdt", "hfdt", "client_shim"))
COMPRESSED = {"nfdt/transport/compression.py", "nfdt/compressors/int8.py"}


@pytest.fixture
def called():
    """The files of functions that begin or end while `on` is set, in all threads that start after this."""
    files, on = set(), threading.Event()

    def note(frame, event, argument):
        if event in ("call", "return") and on.is_set() and frame.f_code.co_filename.startswith(PACKAGES):
            files.add(str(Path(frame.f_code.co_filename).relative_to(ROOT)))

    threading.setprofile(note)
    sys.setprofile(note)
    yield files, on
    sys.setprofile(None)
    threading.setprofile(None)


def documented():
    """The files of the table in docs/architecture.md; `algorithms/...` stands for the algorithm's."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.split("One push, one pull.")[1].split("A single worker hosts its server")[0]
    paths, folder = [], ""
    for row in re.findall(r"^\| (`.*?) \|", table, re.M):
        for path in re.findall(r"`(.*?)`", row):
            folder = path.rpartition("/")[0] or folder
            paths.append(path if "/" in path else f"{folder}/{path}")
    return paths


@pytest.mark.parametrize("options", [{}, {"channel": "grpc"}, {"compress": "int8"}], ids=["files", "stream", "int8"])
@pytest.mark.parametrize("rule", ["asgd", "ddc_asgd"])
def test_a_push_and_its_pull_pass_the_files_of_the_table(cluster, called, monkeypatch, rule, options):
    monkeypatch.setattr(compressors, "LEAST", 100)  # elements of a tensor that is compressed
    files, on = called
    made = cluster(make_model(keras.optimizers.SGD(0.1, momentum=0.9)), workers=2, rule=rule, **options)
    made.start(0)
    lane = made.channels()
    pulled = lane.ask()
    for number in range(2):  # the second finds its functions compiled
        gradient = pushed(made, number, pulled[0].batches)
        on.set() if number else None
        pulled = lane.push(gradient)
    on.clear()
    lane.close()
    if "compress" in options:
        assert files > COMPRESSED
        files -= COMPRESSED
    algorithm = f"nfdt/algorithms/{rule}.py"
    assert files == {algorithm if path.endswith("...") else path for path in documented()}
    assert len(files) <= 12
