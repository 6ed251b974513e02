"""The scratch directories of ranks other than 0: they write there, and read there the files that they wrote."""

import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from client_shim.replica import follow
from client_shim.replica.rank import RankConfig
from client_shim.replica.scratch import diverted
from fdt.process_group.streams import SharedBuffer


def read(path):
    with open(path) as file:
        return file.read()


@pytest.fixture
def world(tmp_path, monkeypatch):
    real = tmp_path / "real"
    (real / "logs").mkdir(parents=True)
    (real / "data.txt").write_text("given\n")
    monkeypatch.chdir(real)
    yield real
    assert sorted(str(p.relative_to(real)) for p in real.rglob("*")) == ["data.txt", "logs"]
    assert (real / "data.txt").read_text() == "given\n"


def test_what_is_written_is_read_again_and_stays_out_of_the_real_folder(world, tmp_path):
    with diverted(tmp_path / "scratch", tmp_path / "ours"):
        for path in ("new.txt", "logs/new.txt", str(world / "absolute.txt")):
            with open(path, "w") as file:
                file.write(path)
            assert read(path) == path
            assert os.path.exists(path)
        os.makedirs("a/b")
        assert os.path.isdir("a/b")
        os.rename("new.txt", "a/moved.txt")
        assert os.listdir("a") in (["b", "moved.txt"], ["moved.txt", "b"])
        os.remove("a/moved.txt")
        assert not os.path.exists("a/moved.txt")
    assert not os.path.exists("new.txt")


def test_a_new_folder_is_entered_before_rank_0_has_made_it(world, tmp_path):
    with diverted(tmp_path / "scratch", tmp_path / "ours"):
        os.makedirs("run/1")
        os.chdir("run/1")
        assert Path.cwd() == world / "run" / "1"
        with open("new.txt", "w") as file:
            file.write("mine")
        assert read(world / "run/1/new.txt") == read("new.txt") == "mine"
        assert read("../../data.txt") == "given\n"
        os.chdir("../..")
        assert os.getcwd() == str(world)
        assert read("data.txt") == "given\n"
        os.chdir("logs")
    assert os.getcwd() == str(world / "logs")


def test_an_existing_file_is_read_where_it_is_and_changed_in_a_copy(world, tmp_path):
    with diverted(tmp_path / "scratch", tmp_path / "ours"):
        assert read("data.txt") == "given\n"
        with open("data.txt", "a") as file:
            file.write("more\n")
        assert read("data.txt") == "given\nmore\n"
    assert read("data.txt") == "given\n"


def test_where_ranks_meet_is_not_the_scripts(world, tmp_path):
    (tmp_path / "ours").mkdir()
    with diverted(tmp_path / "scratch", tmp_path / "ours"):
        SharedBuffer(tmp_path / "ours" / "slot-1").write(np.ones(3))
    assert (tmp_path / "ours" / "slot-1").stat().st_size == 24


def test_what_is_removed_and_moved_stays_in_the_real_folder(world, tmp_path):
    with diverted(tmp_path / "scratch", tmp_path / "ours"):
        shutil.rmtree("logs")  # rank 0 may have written there since
        os.makedirs("logs", exist_ok=True)
        os.remove("data.txt")
        os.rename("data.txt", "logs/moved.txt")
        assert read("logs/moved.txt") == "given\n"
        shutil.copy("data.txt", "copy.txt")
        shutil.rmtree("logs")
        assert not os.listdir("logs")


def test_paths_that_are_keywords_are_mapped(world, tmp_path):
    with diverted(tmp_path / "scratch", tmp_path / "ours"):
        os.mkdir(path="logs/a")
        with open(file="logs/a/1.txt", mode="w") as file:
            file.write("one")
        os.rename(src="logs/a/1.txt", dst="logs/a/2.txt")
        os.replace(src="data.txt", dst="logs/a/3.txt")
        assert sorted(os.listdir(path="logs/a")) == ["2.txt", "3.txt"]
        assert os.stat(path="logs/a/2.txt").st_size == 3
        assert read("data.txt") == "given\n", "rank 0's file is moved in this rank's copy only"
        os.remove(path="logs/a/2.txt")
        shutil.rmtree(path="logs/a")


def test_a_folder_that_is_there_already_lists_its_files(world, tmp_path):
    with diverted(tmp_path / "scratch", tmp_path / "ours"):
        os.makedirs(world, exist_ok=True)
        assert sorted(glob.glob("*")) == ["data.txt", "logs"]


def test_a_folder_holds_the_real_files_and_the_ranks_own(world, tmp_path):
    (world / "logs" / "given.txt").touch()
    with diverted(tmp_path / "scratch", tmp_path / "ours"):
        Path("logs", "own.txt").write_text("1")
        Path("logs", "given.txt").write_text("2")
        assert sorted(os.listdir("logs")) == ["given.txt", "own.txt"]
        with os.scandir("logs") as entries:
            assert sorted(entry.name for entry in entries) == ["given.txt", "own.txt"]
        assert [sorted(files) for _, _, files in os.walk("logs")] == [["given.txt", "own.txt"]]
    (world / "logs" / "given.txt").unlink()


def test_links_and_moved_folders_stay_out_of_the_real_folder(world, tmp_path):
    with diverted(tmp_path / "scratch", tmp_path / "ours"):
        Path("logs", "1.txt").write_text("1")
        os.symlink("1.txt", "logs/last")
        os.link("data.txt", "logs/same")
        assert (os.readlink("logs/last"), read("logs/last"), read("logs/same")) == ("1.txt", "1", "given\n")
        os.rename("logs", "kept")
        assert read("kept/1.txt") == "1"


def test_what_tensorflow_writes_in_cpp_stays_out_of_the_real_folder(world, tmp_path):
    code = """
import sys
from pathlib import Path
from client_shim.replica import follow
from client_shim.replica.rank import RankConfig
from client_shim.replica.scratch import diverted
with diverted(Path(sys.argv[1]), Path(sys.argv[1]) / "ours"):
    import tensorflow as tf
    tf.io.write_file("new.txt", tf.constant("text"))
    assert tf.io.read_file("new.txt") == b"text" and tf.io.read_file("data.txt") == b"given\\n"
    with tf.io.TFRecordWriter("logs/rows") as writer:
        writer.write(b"row")
    dataset = tf.data.TFRecordDataset(["logs/rows"]).cache("cached")
    assert [row.numpy() for row in dataset] == [b"row"]
    dataset.save("saved")
    assert len(list(tf.data.Dataset.load("saved"))) == 1
    tf.io.write_file(filename="logs/a.txt", contents="text")
    tf.io.gfile.copy(src="logs/a.txt", dst="logs/b.txt")
    tf.io.gfile.rename(src="logs/b.txt", dst="logs/c.txt")
    assert len(tf.io.gfile.glob(pattern="logs/c.txt")) == 1 and not tf.io.gfile.glob(pattern="logs/b.txt")
    tf.io.gfile.copy(src="data.txt", dst="logs/d.txt")
    assert tf.io.gfile.exists(path="logs/d.txt")
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(tmp_path / "scratch")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_rank_whose_command_was_killed_leaves_nothing(tmp_path, monkeypatch):
    """Its ending runs in the process whose writing is diverted; the command may be gone before it begins to look."""
    mine, ended = tmp_path / "fdt-scratch-x" / "1", []
    monkeypatch.setattr(follow.os, "_exit", ended.append)
    with diverted(mine, tmp_path / "ours"):
        with open(tmp_path / "checkpoint", "w") as file:
            file.write("large")
        follow._end_with_parent(RankConfig(str(tmp_path), str(mine), 1, 2, 0, {}, "/x", "x", [], parent=2**22 + 1))
        assert len(ended) == 1
        assert not mine.parent.exists()
        Path("later.txt").write_text("diverted again")
    assert not Path("later.txt").exists()
