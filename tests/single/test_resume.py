"""A run that is interrupted and resumed: the script observes the same as in an undisturbed run."""

import contextlib
import errno
import importlib
import os
import random
import resource
import types
from collections import Counter, deque
from types import SimpleNamespace

import numpy as np
import pytest

from client_shim.fit import fit_remotely
from client_shim.imports import intercepted
from client_shim.job import _first_epoch
from client_shim.preemption import Preemption
from client_shim.resume import plain, randomness
from client_shim.resume.checkpointing import FitCheckpoints
from client_shim.resume.saved import Saved, differs, options_of_rows
from client_shim.state import ScriptRun, Settings
from fdt import rundir, security
from fdt.blobs import LocalBlobs
from fdt.cli import RunRequest, Split, kept, resumed
from fdt.errors import CaptureError, UsageError, UserError
from fdt.job import FeedData
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
def training(client, directory, **options):
    """Within, fits are trained by `client` and saved in `directory`; yields the notes."""
    notes = Notes()
    run = ScriptRun(client, Settings(options), Reporters([notes]), directory=directory)
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
    try:
        second = model.fit(x, Y, epochs=epochs, callbacks=[own, best, slower, rows], **options)
    finally:
        if getattr(rows, "csv_file", None):
            rows.csv_file.close()  # as the end of the process does
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
    assert RunDir.load(again, 1, Saved.check)[0][0]["epoch"] == 2, "of which a feed draws the batches again"
    assert any("fit 1 has ended before" in line for line in notes)
    assert any("fit 2 continues from the end of epoch 2 of 6" in line for line in notes)
    assert any("Own: file cannot be saved" in line for line in notes), "what could not be saved is said"
    assert expected[0][4] == 2, "EarlyStopping counted over the interruption, and put the first epoch's weights back"


def checkpoints_of(*callbacks, data=None, engine="hfdt", directory="none", options=None):
    """Return the checkpoints of a `fit` of a model without variables."""
    params = {"verbose": 0, "epochs": 4, "steps": 3}
    history = SimpleNamespace(history={}, epoch=[], params=params)
    model = SimpleNamespace(history=history, stop_training=False, _initial_epoch=None)
    call = SimpleNamespace(callbacks=list(callbacks), arguments={"epochs": 4, "initial_epoch": 0}, model=model)
    none = types.SimpleNamespace(
        **{f"{what}_arrays": list for what in ("model", "optimizer", "metric")},
        **{f"write_{what}": lambda arrays: None for what in ("model", "optimizer", "metrics")},
    )
    run = SimpleNamespace(
        directory=directory, fits=1, reporters=SimpleNamespace(note=print), preemption=Preemption(), engine=engine
    )
    run.settings = Settings(options or {})
    return FitCheckpoints(run, call, data, none)


def one_fit(keras, *callbacks, breaks_at=None, seed=1):
    def breaks(epoch, logs):
        if epoch == breaks_at:
            raise Interrupted

    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), "mse")
    told = keras.callbacks.LambdaCallback(on_epoch_begin=breaks)
    return model.fit(X, Y, batch_size=20, epochs=4, verbose=0, callbacks=[told, *callbacks])


@pytest.mark.parametrize(
    ("engine", "before", "now", "other"),
    [
        ("hfdt", {"batch": "per-worker"}, {}, "batch"),
        ("hfdt", {}, {"rule": "local_sgd"}, "algorithm"),
        ("hfdt", {"partition": "shuffle-split"}, {"partition": "random-sampling"}, "partition"),
        ("nfdt", {}, {"overlap_epochs": "1"}, "overlap-epochs"),
        ("nfdt", {"rule": "asgd"}, {"rule": "ddc_asgd"}, ""),
        ("hfdt", {"batch": "global"}, {"rule": "allreduce"}, ""),
        ("hfdt", None, {"batch": "per-worker"}, ""),  # of an older version
    ],
)
def test_a_step_that_would_have_other_rows_is_not_resumed_from(tmp_path, capsys, engine, before, now, other):
    directory = begun(tmp_path)
    header = {"epoch": 0, "step": 3, "samples": 24, "counts": [0, 0, 0]}
    saved = {} if before is None else {"options": options_of_rows(engine, before)}
    directory.save_step(1, {**header, **saved}, [])
    found = checkpoints_of(engine=engine, directory=directory, options=now)
    found._find_step()
    said = f"step 3 of epoch 1 was saved with another --{other}, under which steps have other rows" if other else ""
    assert (found._midst is None) is bool(other) and capsys.readouterr().out.startswith(said)
    directory.close(ended_well=False)


def test_a_resumed_fit_shuffles_rows_by_the_seed_of_the_run_before(keras, client, tmp_path):
    directory = begun(tmp_path)
    with pytest.raises(Interrupted), training(client, directory):
        one_fit(keras, breaks_at=2)
    with training(client, RunDir.open(directory.directory, "hfdt")):
        one_fit(keras, seed=9)
    assert [job.fit.order_seed for job in client.jobs] == [2, 2]  # one more than the seed


def test_only_a_seed_of_the_script_gives_keras_order(keras, client, tmp_path):
    directory = begun(tmp_path)
    with training(client, directory):
        one_fit(keras, seed=directory.arguments.seed % 2**31)  # as seed_all sets it
        one_fit(keras)
    for engine, workers, given in (("hfdt", 2, 7), ("hfdt", 2, None), ("nfdt", 2, None), ("nfdt", 1, None)):
        client.hello.engine, client.hello.workers = engine, workers
        run = ScriptRun(client, Settings({}, seed=given), Reporters([]))
        with intercepted(lambda *args, run=run: fit_remotely(run, *args)):
            one_fit(keras)
    assert [job.fit.order_seed for job in client.jobs] == [0, 2, 0, 2, 0, 2]


def test_logs_that_callbacks_make_of_variables_and_objects_harm_nobody(keras, client, tmp_path):
    class Strange(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["rate"], logs["thing"] = self.model.optimizer.learning_rate, object()

    directory = begun(tmp_path)
    with pytest.raises(Interrupted), training(client, directory):
        one_fit(keras, Strange(), breaks_at=2)
    with training(client, RunDir.open(directory.directory, "hfdt")) as notes:
        history = one_fit(keras, Strange()).history
    assert history["rate"][:2] == [pytest.approx(0.1)] * 2 and history["thing"][:2] == [None] * 2
    assert [line for line in notes if "thing" in line] == ["History: thing is not a number and was not saved"]


@pytest.mark.parametrize("at", [0, 2])
def test_a_file_of_more_than_this_fit_keeps_its_rows(keras, client, tmp_path, at):
    file, directory = tmp_path / "rows.csv", begun(tmp_path)
    before = "epoch,loss\n0,earlier\n7,earlier\n"
    file.write_text(before)
    logger = keras.callbacks.CSVLogger(str(file), append=True)
    with pytest.raises(Interrupted), training(client, directory, commit_every="50"):  # saved before epoch 0, too
        one_fit(keras, logger, breaks_at=at)
    logger.csv_file.close()
    with open(file, "a") as more:
        more.write(f"{at},of an epoch that no checkpoint knows\n")
    with training(client, RunDir.open(directory.directory, "hfdt")):
        one_fit(keras, keras.callbacks.CSVLogger(str(file), append=True))
    found = file.read_text()
    assert found.startswith(before)
    assert [line.split(",")[0] for line in found.removeprefix(before).splitlines()] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("derived", [False, True])
def test_a_csv_loggers_file_continues(keras, tmp_path, monkeypatch, derived):
    """Without a run: the states of a logger that has written two rows, and of the script's second one."""

    class Derived(keras.callbacks.CSVLogger):
        rows = 0

        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)
            self.rows += 1

    kind, file = Derived if derived else keras.callbacks.CSVLogger, tmp_path / "rows.csv"
    before, again = kind(str(file)), kind(str(file))
    checkpoints = checkpoints_of(before)
    before.on_train_begin()
    before.on_epoch_end(0, {"loss": 5.0})
    header, arrays = checkpoints._taken(1, False)
    assert header["left_out"] == [], "Keras opens and closes the file"
    before.on_epoch_end(1, {"loss": 6.0})
    before.csv_file.close()
    checkpoints = checkpoints_of(again)
    checkpoints.saved = Saved(header, arrays)
    checkpoints.prepare(None)
    again.on_train_begin()
    checkpoints.begun()
    monkeypatch.setattr(checkpoints, "_write", lambda write: None)
    checkpoints.epoch_over(1, {})
    assert not again.append_header, "the logger has not written yet"
    again.on_epoch_end(1, {"loss": 7.0})
    checkpoints.epoch_over(1, {})
    again.on_train_end()
    assert again.append_header and not again.append, "the script's next `fit` begins the file anew, with a header"
    assert [line.rpartition(",")[0] for line in file.read_text().splitlines()] == ["epoch,loss", "0,5.0", "1,7.0"]
    assert getattr(again, "rows", 2) == 2


@pytest.mark.parametrize("older", [False, True])
def test_callbacks_of_a_finished_fit_have_its_params(keras, client, tmp_path, older):
    directory, callback = begun(tmp_path), keras.callbacks.Callback()
    with training(client, directory):
        expected = one_fit(keras).params
    assert expected["epochs"] == 4
    again = RunDir.open(directory.directory, "hfdt")
    if older:
        (header, arrays), _ = again.load(1, Saved.check)
        del header["params"]
        again.finish(1, header, arrays)
        expected = {"verbose": 0, "epochs": 4, "steps": None}
    with training(client, again):
        assert one_fit(keras, callback).params == callback.params == expected


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("older", [False, True])
def test_a_fit_whose_epochs_are_all_trained_ends_with_the_last_ones_logs(keras, client, tmp_path, stopped, older):
    class Ending(keras.callbacks.Callback):
        breaks, logs = True, None

        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = stopped

        def on_train_end(self, logs=None):
            self.logs = logs
            if self.breaks:
                raise Interrupted

    directory, expected, resumed = begun(tmp_path), Ending(), Ending()
    with pytest.raises(Interrupted), training(client, directory):
        one_fit(keras, expected)
    again = RunDir.open(directory.directory, "hfdt")
    if older:
        (header, arrays), _ = again.load(1, Saved.check)
        del header["logs"]
        again.save(1, header["epoch"], header, arrays)
    resumed.breaks = False
    with training(client, again):
        history = one_fit(keras, resumed)
    assert len(history.epoch) == (1 if stopped else 4)
    assert resumed.logs == ({} if older else expected.logs) and expected.logs["loss"] == history.history["loss"][-1]


def test_what_a_callback_is_made_with_is_the_scripts_and_what_it_learnt_is_the_runs(keras, client, tmp_path):
    def stopping(patience):
        made = keras.callbacks.EarlyStopping(monitor="loss", patience=patience, min_delta=1000)
        made.wait = 2  # as of another fit; `fit` sets it anew, and it is 2 again where this one is interrupted
        return made

    directory = begun(tmp_path)
    with pytest.raises(Interrupted), training(client, directory):
        one_fit(keras, stopping(50), breaks_at=3)
    again = stopping(3)
    with training(client, RunDir.open(directory.directory, "hfdt")):
        one_fit(keras, again)
    assert (again.patience, again.wait, again.stopped_epoch) == (3, 3, 3)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(keras, client, tmp_path):
    with training(client, begun(tmp_path, "undisturbed")):
        expected = script(keras)
    again = interrupted(keras, client, begun(tmp_path), at=2)
    last = again.directory / "fit-0002-epoch-00002.ckpt"
    os.truncate(last, last.stat().st_size // 2)
    with training(client, again) as notes:
        same(script(keras), expected)
    assert any("epoch-00002.ckpt is damaged" in line for line in notes)
    assert any("continues from the end of epoch 1" in line for line in notes)


WRITTEN = {  # the header of a checkpoint as a run writes it
    "epoch": 1,
    "seed": 5,
    "done": False,
    "stopped": False,
    "counts": [1, 0, 0],
    "history": {"dict": [["loss", {"list": [0.5]}]]},
    "epochs": {"list": [0]},
    "random": {"list": [{"array": 0}]},
    "callbacks": [["Own", {"losses": {"list": [0.5]}}]],
    "left_out": [],
    "signature": {"epochs": 3},
}
WRONG = {
    "epoch": "x",
    "seed": None,
    "counts": [1],
    "history": {"array": 9},
    "epochs": {"list": 5},
    "random": {"a": [], "b": []},
}
WRONG |= {"callbacks": [["Own"]], "left_out": "x", "signature": [1], "done": KeyError, "stopped": KeyError}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_forged_checkpoint_is_passed_over_for_the_one_before(tmp_path, name):
    """A right digest, and an entry that is missing or of another kind."""
    directory, arrays = begun(tmp_path), [np.ones(3)]
    directory.save(1, 1, WRITTEN, arrays)
    assert directory.load(1, Saved.check)[1] == []
    for bad in ({k: v for k, v in WRITTEN.items() if k != name}, {**WRITTEN, name: WRONG[name]}):
        if bad.get(name) is not KeyError:
            directory.save(1, 2, bad, arrays)
            (header, _), (said,) = directory.load(1, Saved.check)
            assert header == WRITTEN and said.startswith("fit-0001-epoch-00002.ckpt is no checkpoint of a fit: ")
    directory.close(ended_well=False)


@pytest.mark.parametrize("header", [b"[" * 100_000, b"[]", b'"x"'])
def test_a_checkpoint_with_a_header_of_another_kind_is_damaged(tmp_path, header):
    with pytest.raises(rundir.Damaged):
        read_forged(tmp_path / "forged", header)


def read_forged(path, header):
    parts = [rundir.MAGIC, len(header).to_bytes(8, "little"), header, rundir.tensors.pack([])]
    rundir.replace_file(path, parts, digest=True)
    return rundir.read_checkpoint(path)


def test_another_script_is_refused_by_what_differs(client, tmp_path):
    keras = importlib.import_module("keras")
    again = interrupted(keras, client, begun(tmp_path), at=1)
    with pytest.raises(CaptureError, match="the same with --resume as before: data was"), training(client, again):
        script(keras, x=X + 1)
    with (
        pytest.raises(CaptureError, match="epochs was 6. Received: 7"),
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
    monkeypatch.setattr(rundir, "write_checkpoint", full)
    with training(client, begun(tmp_path)) as notes:
        same(script(keras), expected)
    (first, second) = [line for line in notes if "a checkpoint cannot be written: " in line]  # one a fit
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
    rundir.write_checkpoint(file, {"a": 1}, [np.arange(5)])
    assert rundir.read_checkpoint(file)[0] == {"a": 1}
    data = bytearray(file.read_bytes())
    for place in range(0, len(data), 7):
        data[place] ^= 1
        file.write_bytes(data)
        with pytest.raises(rundir.Damaged):
            rundir.read_checkpoint(file)
        data[place] ^= 1
    file.write_bytes(b"")
    with pytest.raises(rundir.Damaged):
        rundir.read_checkpoint(file)


def test_a_checkpoint_under_another_name_is_passed_over(tmp_path):
    directory = begun(tmp_path)
    directory.save(1, 1, {"epoch": 1}, [])
    directory.save(1, 2, {"epoch": 2}, [])
    path = directory.directory
    (path / "fit-0001-epoch-00002.ckpt").rename(path / "fit-0001-epoch-00003.ckpt")
    found, (said,) = directory.load(1)
    assert found == ({"epoch": 1}, [])
    assert said.startswith("fit-0001-epoch-00003.ckpt is damaged: it is fit-0001-epoch-00002.ckpt under another name")


def test_a_changed_byte_of_the_command_line_is_one_line_or_changes_nothing(tmp_path):
    directory = begun(tmp_path)
    file, expected = directory.directory / rundir.FILE, directory.arguments
    directory.save(1, 1, {}, [])
    directory.close(ended_well=False)
    whole = file.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            try:
                assert read_arguments(directory.directory, "hfdt") == expected  # a space between entries
            except UserError as error:
                assert "run.json cannot be read" in str(error) or "is hfdt's" in str(error)
    for part in (b"", b"[]", b"1", whole[:-9]):
        file.write_bytes(part)
        with pytest.raises(UserError, match="run.json cannot be read"):
            read_arguments(directory.directory, "hfdt")


def test_a_run_directory_is_one_runs_and_the_users_own(tmp_path):
    directory = begun(tmp_path)
    directory.save(1, 1, {}, [])
    path = directory.directory
    assert path.stat().st_mode & 0o77 == 0
    with pytest.raises(UserError, match="has not ended: a process uses it"):
        RunDir.open(path, "hfdt")
    directory.close(ended_well=False)
    with pytest.raises(UserError, match="which holds a run that has not ended"):
        begun(tmp_path)
    with pytest.raises(UserError, match="use `hfdt run --resume`"):
        read_arguments(path, "nfdt")
    path.chmod(0o777)
    with pytest.raises(UserError, match="writable to all users"):
        RunDir.open(path, "hfdt")
    with pytest.raises(UserError, match="made by --run-dir"):
        read_arguments(tmp_path, "hfdt")


def test_a_link_counts_as_what_it_leads_to(tmp_path):
    directory = begun(tmp_path)
    directory.save(1, 1, {}, [])
    path = directory.directory
    directory.close(ended_well=False)
    link = tmp_path / "link"
    link.symlink_to(path)
    RunDir.open(link, "hfdt").close(ended_well=False)
    path.chmod(0o777)
    with pytest.raises(UserError, match="writable to all users"):
        RunDir.open(link, "hfdt")
    path.chmod(0o700)
    elsewhere = (path / "run.json").rename(tmp_path / "elsewhere")
    (path / "run.json").symlink_to(elsewhere)
    elsewhere.chmod(0o666)
    with pytest.raises(UserError, match="writable to all users"):
        RunDir.open(path, "hfdt")


def test_the_file_that_is_checked_is_the_file_that_is_read(tmp_path, monkeypatch):
    """Another user who may write to a directory above exchanges what a path names between the two."""
    run, other = begun(tmp_path), RunDir.create(tmp_path / "other", "hfdt", [], SCRIPT, ["another's"])
    for number, each in enumerate((run, other)):
        each.save(1, 1, {"number": number}, [])
    check = security.check_ours

    def checked_and_exchanged(path, *words):
        check(path, *words)
        if path.parent == run.directory:
            os.replace(other.directory / path.name, path)

    monkeypatch.setattr(security, "check_ours", checked_and_exchanged)
    assert read_arguments(run.directory, "hfdt").words == ["--epochs", "3"]
    (header, _), _ = run.load(1)
    assert header == {"number": 0}


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "made")
    with pytest.raises(UserError, match="cannot be written"):
        begun(tmp_path)
    assert not (tmp_path / "made").exists()


def test_what_a_process_killed_while_it_wrote_has_left_is_swept_away(tmp_path):
    directory = begun(tmp_path)
    directory.save(1, 1, {}, [])
    path = directory.directory
    directory.close(ended_well=False)
    left, others = [path / ".fit-0001-epoch-00002.ckpt.0a1b.part", path / ".run.json.0a1b.part"], path / ".mine.part"
    for file in (*left, others):
        file.touch()
    RunDir.open(path, "hfdt").close(ended_well=False)
    assert not any(file.exists() for file in left) and others.exists()


def test_the_last_epochs_are_kept_however_many_there_are(tmp_path):
    directory = begun(tmp_path)
    for epoch in (99_998, 99_999, 100_000, 100_001):
        directory.save(1, epoch, {"epoch": epoch}, [])
    assert directory.load(1)[0][0] == {"epoch": 100_001}
    assert len(list(directory.directory.glob("*.ckpt"))) == 2


def test_a_script_that_cannot_be_read_is_one_line(tmp_path, monkeypatch):
    script, directory = tmp_path / "train.py", tmp_path / "run"
    script.write_text("")
    begun = RunDir.create(directory, "hfdt", [], str(script), [])
    begun.save(1, 1, {}, [])
    begun.close(ended_well=False)

    def broken(path):
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(rundir, "digest_of", broken)
    with pytest.raises(UserError, match="--resume needs the script of the run: .*Input/output error: .*train.py"):
        kept(RunRequest("hfdt", script=str(script), run_dir=directory, resumed=True), [], lambda _: 0)


@pytest.mark.parametrize("used", [["numpy"], ["python"], None])
def test_generators_that_have_drawn_the_batches_again_go_on_from_there(used):
    checkpoints = checkpoints_of(data=FeedData("training", 3) if used else None)
    np.random.seed(5)
    checkpoints.saved = Saved(*checkpoints._taken(2, False))
    order = np.random.permutation(9)  # by a feed that shuffles, before the script's callbacks see the beginning
    before = random.getstate()
    random.random()
    checkpoints.prepare(SimpleNamespace(generators_used=lambda: used) if used else None)
    checkpoints.begun()
    assert (np.random.permutation(9) == order).all() == (used != ["numpy"]), "no epoch has the order of another"
    assert (random.getstate() == before) == (used != ["python"])


@pytest.mark.parametrize("exists", [False, True])
def test_keras_random_continues_and_takes_nothing_from_pythons_generator(exists):
    keras = importlib.import_module("keras")
    keras.utils.set_random_seed(1)
    assert randomness.states()["keras"] is None
    keras.random.normal([2])
    arrays = []
    saved = plain.encode(randomness.states(), arrays)
    expected = random.random(), keras.random.normal([2]).numpy().tolist()
    keras.utils.set_random_seed(2)  # as in a process that has not drawn
    if exists:
        keras.random.normal([2])
    randomness.restore(plain.decode(saved, arrays))
    assert (random.random(), keras.random.normal([2]).numpy().tolist()) == expected
    restored = plain.decode(saved, arrays)
    del restored["keras"]
    randomness.restore(restored)  # of an older checkpoint


def test_a_finished_fit_draws_its_batches_again_for_the_next_one(keras, client, tmp_path, monkeypatch):
    drawn = []

    def batches():
        while True:
            drawn.append(len(drawn))
            yield X[:2], Y[:2]

    saved = SimpleNamespace(saved=SimpleNamespace(done=True), first=2, replay=lambda: "the History")
    monkeypatch.setattr("client_shim.fit._fit_checkpoints", lambda *_: saved)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with training(client, begun(tmp_path)):
        assert model.fit(batches(), steps_per_epoch=5, epochs=4, verbose=0) == "the History"
    assert len(drawn) >= 10, "the batches of two epochs"


@pytest.mark.parametrize("at", [2, 5])
def test_a_validation_generator_continues_where_the_interrupted_run_left_it(keras, client, tmp_path, at):
    """In the first `fit` or in a second one with the same generator: the first is then not trained again."""

    def batches():
        for i in range(1000):
            yield X[i % 7 : i % 7 + 2] * i, Y[:2]

    def validated(breaks_at=None):
        def breaks(epoch, logs):
            if epoch == breaks_at:
                raise Interrupted

        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        generator, told = batches(), keras.callbacks.LambdaCallback(on_epoch_begin=breaks)
        given = {"validation_data": generator, "validation_steps": 3, "callbacks": [told], "verbose": 0}
        histories = [model.fit(X, Y, initial_epoch=a, epochs=b, **given).history for a, b in ((0, 4), (4, 7))]
        return [value for history in histories for value in history["val_loss"]]

    with training(client, begun(tmp_path, "undisturbed")):
        expected = validated()
    directory = begun(tmp_path)
    with pytest.raises(Interrupted), training(client, directory):
        validated(at)
    with training(client, RunDir.open(directory.directory, "hfdt")):
        assert validated() == expected


def test_a_run_goes_on_in_its_own_directory_only():
    with pytest.raises(UsageError, match="Received: --run-dir too; leave it out"):
        resumed(Split(["--run-dir=b", "--resume", "a"]), "hfdt")


@pytest.mark.parametrize(("first", "drawn"), [(0, 0), (3, 3), (6, 5)])
def test_batches_of_the_last_epoch_are_there_where_no_others_are_left(first, drawn):
    """Ranks look at one before they begin; Keras's own loop begins behind the last epoch all the same."""
    call, captured = SimpleNamespace(arguments={"epochs": 6}), SimpleNamespace(train=FeedData("train", 0, None))
    assert _first_epoch(call, captured, SimpleNamespace(first=first)) == drawn


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "run" / ".lock").mkdir(parents=True)
    with pytest.raises(UserError, match="the run's directory cannot be written"):
        begun(tmp_path)
    with pytest.raises(UserError, match="No such file"):
        RunDir.create(tmp_path / "other", "hfdt", [], str(tmp_path / "gone.py"), [])


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
    known = plain.sums(obj)
    mine.append(9)
    assert plain.attributes(obj, [], known)[0].keys() == {"mine"}, "what has not changed since is not saved"
    table["self"] = table
    lost = types.FunctionType((lambda: 0).__code__, {})
    lost.__module__ = None
    for value in (table, lost):
        with pytest.raises(plain.NotPlain):
            plain.encode(value, [])


def test_a_deque_comes_back_with_its_length():
    last = deque([np.ones(2), np.zeros(2)], maxlen=2)
    obj = SimpleNamespace(
        grid=np.eye(2), windows={"a": deque([1, 2], maxlen=2)}, last=last, mine=deque([3], 1), all=deque([4])
    )
    arrays = []
    encoded, others = plain.attributes(obj, arrays, {})
    again = SimpleNamespace(last=None, mine=deque(maxlen=1), all=deque([5]))
    mine, every = again.mine, again.all
    plain.put_back(again, encoded, arrays)
    assert others == [] and again.mine is mine and again.all is every
    lengths = again.windows["a"].maxlen, again.last.maxlen, again.mine.maxlen, again.all.maxlen
    assert lengths == (2, 2, 1, None)
    np.testing.assert_array_equal(list(again.last), [np.ones(2), np.zeros(2)])
    plain.put_back(again, {"mine": {"deque": [6, 7]}}, [])
    assert again.mine is mine and mine == deque([7], 1), "an older checkpoint has no length"
    again.all = deque()
    plain.put_back(again, {"all": {"bounded_deque": [1, 8]}}, [])
    assert again.all.maxlen == 1, "the first hook, which a finished fit does not call, makes it bounded"


def test_values_of_a_class_come_back_into_the_class():
    class Mixed:
        seen, table = set(), {"a": 1}

    class Own(importlib.import_module("keras").callbacks.Callback, Mixed):
        best, grid, names, odd, functions = [], np.zeros(2), ["constant"], Counter(), {"of": len}
        total, least, rate = 0, None, 0.5

    obj, arrays = Own(), []
    known = plain.sums(obj)
    best, seen, grid = Own.best, Mixed.seen, Own.grid
    obj.best += [5]
    obj.seen.add(6)
    obj.grid[:] = 7
    obj.table = {"of": "the object"}
    obj.odd["one"] += 1
    Own.total, Own.least = 3, np.float32(0.25)
    encoded, others = plain.attributes(obj, arrays, known)
    assert encoded.keys() == {
        *("Own.best", "Mixed.seen", "Own.grid", "table", "Own.total", "Own.least")
    } and others == ["Own.odd"]
    best.clear(), seen.clear(), grid.fill(0)
    Own.total, Own.least, Own.rate = 0, None, 0.75  # the changed script has another rate
    again = Own()
    plain.put_back(again, encoded, arrays)
    assert (best, seen, grid.tolist()) == ([5], {6}, [7, 7])
    assert (Own.total, Own.least, Own.rate) == (3, 0.25, 0.75)
    assert Own.best is best and Mixed.seen is seen and Own.grid is grid
    assert again.table == {"of": "the object"} and Mixed.table == {"a": 1}
    plain.put_back(again, {"Gone.best": 1, "Own.gone": 2}, [])  # of another class, which the changed script had
    assert vars(again).keys() | {"best"} == vars(obj).keys() and not hasattr(Own, "gone")
