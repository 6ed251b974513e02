"""A run that is interrupted and gone on with: what the script sees is what it would have seen undisturbed."""

import contextlib
import importlib
import os
import random
import resource
from types import SimpleNamespace

import numpy as np
import pytest

from client_shim.call import Run
from client_shim.fit import fit_remotely
from client_shim.imports import intercepted
from client_shim.resume import plain
from client_shim.resume.signature import differs
from client_shim.settings import Settings
from fdt import checkpoints
from fdt.blobs import LocalBlobs
from fdt.errors import CaptureError, UserError
from fdt.report import Reporter, Reporters
from fdt.rundir import RunDir, read_arguments
from tests.single.fake_engine import FakeClient

pytestmark = pytest.mark.filterwarnings("default")

X = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
Y = X.sum(axis=1)
SCRIPT = __file__


class Notes(Reporter):
    def __init__(self):
        self.lines = []

    def note(self, text):
        self.lines.append(text)


class Interrupted(Exception):
    """The process is gone, as far as the script is concerned."""


@pytest.fixture(params=["keras", "tf_keras"])
def keras(request):
    return importlib.import_module(request.param)


@pytest.fixture
def client(tmp_path):
    (tmp_path / "blobs").mkdir()
    return FakeClient(LocalBlobs(tmp_path / "blobs"))


def begun(tmp_path, name="run"):
    return RunDir.create(tmp_path / name, "hfdt", ["-np", "2"], SCRIPT, ["--epochs", "3"])


@contextlib.contextmanager
def training(client, directory):
    """Within, fits are trained by `client` and saved in `directory`; yields the notes."""
    notes = Notes()
    run = Run(client, Settings({}), Reporters([notes]), directory=directory)
    try:
        with intercepted(lambda *args: fit_remotely(run, *args)):
            yield notes.lines
    finally:
        directory.close(ended_well=False)


def script(keras, breaks_at=None, x=X, epochs=6, csv="/dev/null"):
    """Two fits; the second with callbacks that know something of the epochs before, broken off before an epoch."""

    class Own(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.losses, self.file = [], object()

        def on_epoch_begin(self, epoch, logs=None):
            if epoch == breaks_at:
                raise Interrupted

        def on_epoch_end(self, epoch, logs=None):
            self.losses.append(logs["loss"])

    keras.utils.set_random_seed(1)
    noise = [keras.layers.Dropout(0.2)] if keras.__name__ == "keras" else []  # tf_keras keeps its state in no variable
    layers = [keras.Input((4,)), *noise, keras.layers.Dense(1)]
    model, own = keras.Sequential(layers), Own()
    model.compile(keras.optimizers.Adam(0.1), "mse")
    options = {"batch_size": 20, "shuffle": True, "verbose": 0}
    first = model.fit(x, Y, epochs=2, **options)
    drawn = random.random(), float(np.random.rand())
    best = keras.callbacks.EarlyStopping(monitor="loss", patience=2, restore_best_weights=True, min_delta=1000)
    slower = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    rows = keras.callbacks.CSVLogger(str(csv))
    second = model.fit(x, Y, epochs=epochs, callbacks=[own, best, slower, rows], **options)
    counts = first.history["loss"], second.history["loss"], second.epoch, own.losses, best.stopped_epoch, drawn
    return counts, model.get_weights()


def same(one, other):
    assert one[0] == other[0]
    for a, b in zip(one[1], other[1], strict=True):
        np.testing.assert_array_equal(a, b)


def interrupted(keras, client, directory, at, **options):
    with pytest.raises(Interrupted), training(client, directory):
        script(keras, breaks_at=at, **options)
    return RunDir.open(directory.directory, "hfdt")


def test_an_interrupted_run_ends_as_an_undisturbed_one(keras, client, tmp_path):
    with training(client, begun(tmp_path, "undisturbed")):
        expected = script(keras, csv=tmp_path / "expected.csv")
    again = interrupted(keras, client, begun(tmp_path), at=2, csv=tmp_path / "found.csv")
    trained = len(client.jobs)
    with open(tmp_path / "found.csv", "a") as file:
        file.write("2,of an epoch that no checkpoint knows\n")
    with training(client, again) as notes:
        found = script(keras, csv=tmp_path / "found.csv")
    same(found, expected)
    assert (tmp_path / "found.csv").read_text() == (tmp_path / "expected.csv").read_text()
    assert len(client.jobs) == trained + 1, "the first fit was finished"
    assert any("fit 1: finished before" in line for line in notes)
    assert any("fit 2: goes on from the end of epoch 2 of 6" in line for line in notes)
    assert any("Own: what it keeps in file" in line for line in notes), "what could not be saved is said"
    assert expected[0][4] == 2, "EarlyStopping counted over the interruption, and put the first epoch's weights back"


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(keras, client, tmp_path):
    with training(client, begun(tmp_path, "undisturbed")):
        expected = script(keras)
    again = interrupted(keras, client, begun(tmp_path), at=2)
    last = again.directory / "fit-0002-epoch-00002.ckpt"
    os.truncate(last, last.stat().st_size // 2)
    with training(client, again) as notes:
        same(script(keras), expected)
    assert any("epoch-00002.ckpt is damaged" in line for line in notes)
    assert any("goes on from the end of epoch 1" in line for line in notes)


def test_another_script_is_refused_by_what_differs(client, tmp_path):
    keras = importlib.import_module("keras")
    again = interrupted(keras, client, begun(tmp_path), at=1)
    with pytest.raises(CaptureError, match="another data"), training(client, again):
        script(keras, x=X + 1)
    with (
        pytest.raises(CaptureError, match="another epochs. Received: 7 instead of 6"),
        training(client, RunDir.open(again.directory, "hfdt")),
    ):
        script(keras, epochs=7)


def test_a_checksum_that_could_not_be_taken_is_no_difference():
    assert not differs({"rows": 60, "checksum": 5}, {"rows": 60, "checksum": 0})
    assert differs({"rows": 60, "checksum": 5}, {"rows": 60, "checksum": 6})
    assert differs({"rows": 60, "checksum": 5}, {"rows": 61, "checksum": 0})


def test_a_full_disk_costs_the_checkpoints_and_one_line(client, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    keras = importlib.import_module("keras")
    with training(client, begun(tmp_path, "undisturbed")):
        expected = script(keras)
    monkeypatch.setattr(checkpoints, "write", full)
    with training(client, begun(tmp_path)) as notes:
        same(script(keras), expected)
    (first, second) = [line for line in notes if "no checkpoint can be written, training goes on" in line]  # one a fit
    assert "No space left on device" in first + second


def test_a_write_that_is_cut_short_leaves_what_was_there(tmp_path):
    directory = begun(tmp_path)
    directory.save(1, 1, {"epoch": 1}, [np.ones(10)])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))  # as a disk that is full after 4 kB
    try:
        with pytest.raises(OSError):
            directory.save(1, 2, {"epoch": 2}, [np.ones(10_000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    (header, (array,)), said = directory.load(1)
    assert (header, len(array), said) == ({"epoch": 1}, 10, [])
    assert not list(directory.directory.glob(".*.part"))
    directory.close(ended_well=True)
    assert not list(directory.directory.iterdir()), "a run that has ended well needs them no more"


def test_a_checkpoint_with_one_wrong_bit_is_none(tmp_path):
    file = tmp_path / "c"
    checkpoints.write(file, {"a": 1}, [np.arange(5)])
    assert checkpoints.read(file)[0] == {"a": 1}
    data = bytearray(file.read_bytes())
    for place in range(0, len(data), 7):
        data[place] ^= 1
        file.write_bytes(data)
        with pytest.raises(checkpoints.Damaged):
            checkpoints.read(file)
        data[place] ^= 1
    file.write_bytes(b"")
    with pytest.raises(checkpoints.Damaged):
        checkpoints.read(file)


def test_a_run_directory_is_one_runs_and_the_users_own(tmp_path):
    directory = begun(tmp_path)
    directory.save(1, 1, {}, [])
    path = directory.directory
    assert path.stat().st_mode & 0o77 == 0
    with pytest.raises(UserError, match="must not be going on still"):
        RunDir.open(path, "hfdt")
    directory.close(ended_well=False)
    with pytest.raises(UserError, match="a run that has not ended is there"):
        begun(tmp_path)
    with pytest.raises(UserError, match="use `hfdt run --resume`"):
        read_arguments(path, "nfdt")
    path.chmod(0o777)
    with pytest.raises(UserError, match="writable to everybody"):
        RunDir.open(path, "hfdt")
    with pytest.raises(UserError, match="made by --run-dir"):
        read_arguments(tmp_path, "hfdt")


def test_plain_values_come_back_into_the_lists_that_the_script_holds():
    mine, table = [1], {"a": 1}
    obj = SimpleNamespace(n=3, mine=mine, table=table, pair=(1, [np.float32(2)]), grid=np.eye(2), f=print, o=object())
    arrays = []
    said, others = plain.attributes(obj, arrays, {})
    assert others == ["o"]
    assert plain.decode(plain.encode(np.less, []), []) is np.less, "by which EarlyStopping remembers what is better"
    obj.n, obj.pair, obj.grid[:] = 0, None, 0
    mine.append(9)
    table.clear()
    plain.put_back(obj, said, arrays)
    assert (obj.n, mine, table, obj.pair) == (3, [1], {"a": 1}, (1, [np.float32(2)]))
    assert obj.mine is mine and obj.table is table and isinstance(obj.pair[1][0], np.float32)
    np.testing.assert_array_equal(obj.grid, np.eye(2))
    assert "grid" not in plain.attributes(obj, [], plain.sums(obj))[0], "what has not changed since is not saved"
