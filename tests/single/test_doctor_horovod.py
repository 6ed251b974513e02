"""Horovod's build, without building: the checks before it, the key of the cache, the messages of failures."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from fdt import doctor
from hfdt.engine import horovod_build, horovod_install
from hfdt.engine.horovod_build import BuildError, Mpi

SYSTEM = Mpi(Path("/usr/bin/mpirun"), Path("/usr/bin/mpicxx"), "Open MPI 4.1.4")
BESIDE = Path(sys.executable).parent
WHEEL = Mpi(BESIDE / "mpirun", BESIDE / "mpicxx", "Open MPI 5.0.11")


def cmake_lists(tmp_path, text):
    path = tmp_path / "horovod" / "tensorflow" / "CMakeLists.txt"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_the_one_line_is_dropped(tmp_path):
    path = cmake_lists(tmp_path, 'list(APPEND X "mpi_ops.cc"\n    "xla_mpi_ops.cc"\n)\n')
    horovod_build.patch(tmp_path)
    assert path.read_text() == 'list(APPEND X "mpi_ops.cc"\n)\n'


@pytest.mark.parametrize("text", ["nothing\n", "xla_mpi_ops.cc\nxla_mpi_ops.cc\n"])
def test_a_source_that_looks_otherwise_is_refused(tmp_path, text):
    cmake_lists(tmp_path, text)
    with pytest.raises(BuildError, match=r"xla_mpi_ops\.cc.*Received"):
        horovod_build.patch(tmp_path)


def test_another_archive_is_refused(tmp_path):
    archive = tmp_path / "horovod-0.28.1.tar.gz"
    tarfile.open(archive, "w:gz").close()
    with pytest.raises(BuildError, match=f"{horovod_build.SHA256}.*Received"):
        horovod_build.verify(archive)


def test_no_compiler_is_named_with_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BuildError, match=r"PATH has no C\+\+ compiler .* and no make\. Install them"):
        horovod_build.find_compiler()


def test_a_failed_step_shows_the_error_and_the_end_of_the_log(tmp_path):
    log = tmp_path / "build.log"
    runner = horovod_build._Runner(log, dict(os.environ))
    with pytest.raises(BuildError, match=r"`pip no-such-command`: ERROR: unknown command.*build\.log"):
        runner.pip("no-such-command")
    with pytest.raises(BuildError, match=r"`pip another`: ERROR: unknown command \"another\""):  # its own output's
        runner.pip("another")


def test_a_cuda_compiler_alone_does_not_ask_for_nccl(monkeypatch, tmp_path):
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "nccl.h").touch()
    (tmp_path / "nvcc").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    environ = {"HOROVOD_NCCL_HOME": str(tmp_path)}
    monkeypatch.setattr(doctor, "gpus", lambda: [])
    assert horovod_build.gpu_variables(environ) == {}
    monkeypatch.setattr(doctor, "gpus", lambda: ["A100"])
    assert horovod_build.gpu_variables(environ) == {"HOROVOD_GPU_OPERATIONS": "NCCL"}


def test_the_build_finds_this_environments_mpi_first_and_make_has_our_flags(monkeypatch, tmp_path):
    monkeypatch.setenv("MAKEFLAGS", " -- ARGS=x")  # as a calling make leaves it
    env = horovod_build._environment(tmp_path, WHEEL, "c++")
    assert env["PATH"].split(os.pathsep)[:2] == [str(tmp_path / "bin"), str(BESIDE)]
    assert env["MAKEFLAGS"].startswith("-j")
    assert env["HOROVOD_WITH_MPI"] == "1"
    assert "$ORIGIN" in env["LDFLAGS"]


@pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")
def test_the_flags_of_the_build_include_headers_that_the_sources_forget(tmp_path):
    """Later GCCs do not include them with other headers. A source without any header stands for Horovod's."""
    source = tmp_path / "types.cc"
    source.write_text('uint8_t x;\nstd::logic_error y{""};\n')
    flags = horovod_build._environment(tmp_path, None, "c++")["CXXFLAGS"].split()
    assert subprocess.run(["c++", "-fsyntax-only", source], capture_output=True).returncode != 0
    subprocess.run(["c++", *flags, "-fsyntax-only", source], check=True)


def test_without_mpicxx_the_build_is_gloo_only(tmp_path):
    env = horovod_build._environment(tmp_path, None, "c++")
    assert env["HOROVOD_WITHOUT_MPI"] == env["HOROVOD_WITH_GLOO"] == "1"
    assert "HOROVOD_WITH_MPI" not in env


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n", "Open MPI 4.1.4"),
        ("HYDRA build details:\n    Version:                                 4.0.2\n", "MPICH 4.0.2"),
        ("", "unknown"),
    ],
)
def test_mpi_version(said, version):
    assert horovod_install.mpi_version(said) == version


def test_the_cache_is_keyed_by_tensorflow_python_and_mpi(monkeypatch):
    keys = {horovod_install.key(mpi) for mpi in (None, SYSTEM, WHEEL)}
    monkeypatch.setattr(doctor, "tensorflow_version", lambda: "2.16.2")
    keys |= {horovod_install.key(WHEEL)}
    assert len(keys) == 4
    assert all(f"cp{sys.version_info[0]}{sys.version_info[1]}" in key and "/" not in key for key in keys)


def test_without_tensorflow_there_is_nothing_to_build_against(monkeypatch):
    monkeypatch.setattr(doctor, "tensorflow_version", lambda: None)
    with pytest.raises(BuildError, match="TensorFlow"):
        horovod_install.key(None)


def test_a_working_horovod_is_left_alone(monkeypatch):
    monkeypatch.setattr(horovod_install, "find_mpi", lambda: WHEEL)
    monkeypatch.setattr(horovod_install, "probe", lambda: (True, True))
    assert horovod_install.install(lambda what, percent: None) == "already installed"


def test_a_cached_wheel_is_used_and_a_broken_one_is_built_anew(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(horovod_install, "find_mpi", lambda: WHEEL)
    monkeypatch.setattr(horovod_install, "_pip_install", lambda *words: None)
    works: dict[str, bool] = {}
    built = []
    monkeypatch.setattr(horovod_install, "probe", lambda log=None: (True, True) if works.get("now") else None)

    def build(into, scratch, mpi, log, progress):
        built.append(mpi)
        works["now"] = True
        (into / "horovod-0.28.1-test.whl").write_bytes(b"wheel")
        return into / "horovod-0.28.1-test.whl"

    monkeypatch.setattr(horovod_build, "build", build)
    cache = horovod_install.cache_directory(horovod_install.key(WHEEL))
    (cache / "horovod-0.28.1-test.whl").write_bytes(b"broken")
    assert horovod_install.install(lambda what, percent: None) == "built"
    assert built == [WHEEL]
    assert (cache / "horovod-0.28.1-test.whl").read_bytes() == b"wheel"
    assert not list(cache.glob(".horovod*"))
