"""The folder and the environment of a script's process: what of them is sent, and what a worker makes of it."""

import os

import pytest

from fdt import job as jobs
from fdt.errors import UserError
from fdt.job import Surroundings, restore, take_over


@pytest.fixture(autouse=True)
def _restored(tmp_path, monkeypatch):
    before = Surroundings.now()
    monkeypatch.chdir(tmp_path)
    jobs._at_first.cache_clear()
    yield
    restore(before)
    jobs._at_first.cache_clear()


def test_changes_of_the_script_alone(tmp_path):
    os.environ["OTHER"] = "1"
    began = Surroundings.now()
    assert began.changes() == Surroundings(str(tmp_path))
    os.environ |= {"SCALE": "2", "FDT_RANK": "1", "OMP_NUM_THREADS": "3", "TF_CONFIG": "{}", "CUDA_VISIBLE_DEVICES": ""}
    del os.environ["OTHER"]
    (tmp_path / "in").mkdir()
    os.chdir("in")
    changes = began.changes()
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
    take_over(Surroundings(str(tmp_path / "in"), True))
    take_over(Surroundings(str(tmp_path / "absent")))  # where the client began: it may be on another host
    assert os.getcwd() == str(tmp_path)
    with pytest.raises(UserError, match="the script changed its folder to .*absent.*No such file.*; make it there, or"):
        take_over(Surroundings(str(tmp_path / "absent"), True))
