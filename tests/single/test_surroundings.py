"""The folder and the environment of a script's process: what of them is sent, and what a worker makes of it."""

import os

import pytest

from client_shim import surroundings
from client_shim.surroundings import Surroundings, restore


def take_over(job):
    return surroundings.take_over(job.text())


@pytest.fixture(autouse=True)
def _restored(tmp_path, monkeypatch):
    before = Surroundings.now()
    monkeypatch.chdir(tmp_path)
    surroundings._at_first.cache_clear()
    yield
    restore(before)
    surroundings._at_first.cache_clear()


def test_changes_of_the_script_alone(tmp_path):
    os.environ["OTHER"] = "1"
    began = Surroundings.now()
    assert began.changes(set()) == Surroundings(str(tmp_path))
    os.environ |= {"SCALE": "2", "FDT_RANK": "1", "OMP_NUM_THREADS": "3", "TF_CONFIG": "{}", "CUDA_VISIBLE_DEVICES": ""}
    del os.environ["OTHER"]
    (tmp_path / "in").mkdir()
    os.chdir("in")
    changes = began.changes(set())
    assert changes == Surroundings(str(tmp_path / "in"), True, {"SCALE": "2"}, ["OTHER"])
    assert "SCALE" not in repr(changes)


def test_a_job_does_not_leak_into_the_next(tmp_path):
    os.environ["OTHER"], os.environ["FDT_RANK"] = "1", "0"
    (tmp_path / "in").mkdir()
    take_over(Surroundings(str(tmp_path / "in"), True, {"SCALE": "2"}, ["OTHER"]))
    assert os.getcwd() == str(tmp_path / "in") and os.environ["SCALE"] == "2" and "OTHER" not in os.environ
    os.environ["FDT_RANK"] = "1"  # a process's own
    take_over(Surroundings())
    assert os.getcwd() == str(tmp_path) and "SCALE" not in os.environ
    assert (os.environ["OTHER"], os.environ["FDT_RANK"]) == ("1", "1")


def test_a_folder_that_this_host_lacks(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "rows").touch()
    take_over(Surroundings(str(tmp_path / "in"), True))
    take_over(Surroundings(str(tmp_path / "absent")))  # where the client began: it may be on another host
    assert os.getcwd() == str(tmp_path) and os.path.exists("rows")
    (line,) = take_over(Surroundings(str(tmp_path / "absent"), True))
    assert os.listdir() == [] and "run in an empty folder: " in line and "absent" in line
    os.rmdir(os.getcwd())


def test_a_first_folder_that_is_gone(tmp_path):
    for name in ("first", "in"):
        (tmp_path / name).mkdir()
    os.chdir(tmp_path / "first")
    take_over(Surroundings(str(tmp_path / "in"), True))
    (tmp_path / "first").rmdir()
    for _ in range(2):
        take_over(Surroundings(str(tmp_path / "in"), True))
        assert os.getcwd() == str(tmp_path / "in")


def test_a_variable_that_workers_began_with_is_taken_back():
    began, names = Surroundings.now(), set()
    os.environ["SCALE"] = "2"
    began.changes(names)
    del os.environ["SCALE"]
    assert began.changes(names).removed == ["SCALE"]
    os.environ["SCALE"] = "2"  # of a worker that begins now
    take_over(Surroundings(removed=["SCALE"]))
    assert "SCALE" not in os.environ


def test_a_path_that_is_not_utf8_stays():
    found = Surroundings("/caf\udce9", True, {"SCALE": "2"}, ["OTHER"])
    assert Surroundings.read(found.text()) == found


@pytest.mark.parametrize("text", ["1", "[]", "null", "{", '{"directory": 1}', '{"variables": {"A": 1}}'])
def test_another_text_is_refused(text):
    with pytest.raises(ValueError):
        Surroundings.read(text)
