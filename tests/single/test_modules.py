"""`run -m package.module` runs what `python -m package.module` runs, and reads the source that it will run."""

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from client_shim.command import may_fit
from client_shim.replica import remote_code
from client_shim.replica.detection import detect_capture
from client_shim.script import run_script
from fdt.cli import file_of, folder_of
from hfdt.cli import main as hfdt

SEES = """'''Doc.'''
import os, sys
from . import NAME
from .. import top
print(__name__, __file__, __package__, __spec__.name, sys.argv, sys.path[0], os.getcwd(), __cached__, NAME, top)
print(sys.modules["__main__"].__dict__ is globals(), __doc__, "acme.inner.see" in sys.modules)
if "fail" in sys.argv:
    raise ValueError("on purpose")
"""


@pytest.fixture(autouse=True)
def package(tmp_path, monkeypatch):
    inner = tmp_path / "acme" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "acme" / "__init__.py").write_text("top = 'top'\n")
    (inner / "__init__.py").write_text("NAME = 'inner'\n")
    (inner / "see.py").write_text(SEES)
    (inner / "__main__.py").write_text(SEES)
    (tmp_path / "spaces" / "deep").mkdir(parents=True)  # namespace packages
    (tmp_path / "spaces" / "deep" / "say.py").write_text("import beside\nprint(__package__)\n")
    (tmp_path / "beside.py").write_text("def train(model):\n    model.fit()\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("acme", "spaces", "beside")]:
        del sys.modules[name]


def plain(*words):
    return subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", ["acme.inner.see", "acme.inner", "spaces.deep.say"])
def test_a_module_sees_what_python_shows_it(name, capfd):
    assert run_script(f"-m {name}", ["--lr", "0.1"]) == 0
    assert capfd.readouterr().out == plain(name, "--lr", "0.1").stdout != ""


def test_its_error_is_pythons_and_the_process_is_as_before(capfd):
    before = sys.modules["__main__"], sys.argv, list(sys.path)
    assert run_script("-m acme.inner.see", ["fail"]) == 1
    assert (sys.modules["__main__"], sys.argv, sys.path) == before
    shown = capfd.readouterr().err.splitlines()
    assert shown[0] == "Traceback (most recent call last):"
    assert "acme/inner/see.py" in shown[1] and shown[-1] == "ValueError: on purpose"
    assert not any("client_shim" in line for line in shown)


def test_as_a_user_runs_it(package):
    typed = ["hfdt", "run", "-m", "acme.inner.see", "--lr", "3", "-np", "2"]
    assert plain(*typed).stdout == plain("acme.inner.see", "--lr", "3").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-m", "nope"], "no module named nope, seen from"),
        (["-m", "acme.nope"], "; acme is there"),
        (["-m", "acme.inner.see.py"], "did you mean -m acme.inner.see?"),
        (["-m", "acme"], "acme is a package without __main__.py, and cannot be run; name one of its modules"),
        (["-m", ".acme"], "no module named .acme"),
        (["-m"], "Option '-m' requires an argument."),
        (["acme.inner.see"], "no such script. Received: acme.inner.see"),
    ],
)
def test_a_module_that_cannot_be_run_is_one_line(words, said):
    ended = CliRunner().invoke(hfdt, ["run", *words])
    (line,) = ended.stderr.splitlines()
    assert ended.exit_code == 2
    assert said in line


def test_the_source_is_read_from_the_package_and_from_the_working_directory(package):
    assert (file_of("-m acme.inner"), folder_of("-m acme.inner")) == (package / "acme/inner/__main__.py", package)
    assert may_fit("-m spaces.deep.say") and not may_fit("-m acme.inner.see")
    (package / "acme" / "__init__.py").write_text("top = 1\nimport beside\n")
    assert may_fit("-m acme.inner.see")  # imported by the package around the module
    (package / "acme" / "inner" / "loop.py").write_text("from . import own\n")
    (package / "acme" / "inner" / "own.py").write_text("optimizer.apply_gradients(zip(g, v))\n")
    assert detect_capture("-m acme.inner.loop").capture == "replica"


def test_ranks_on_other_hosts_receive_the_whole_package(package, tmp_path):
    files = remote_code.collect("-m acme.inner.see")
    names = ("__init__.py", "inner/__init__.py", "inner/see.py", "inner/__main__.py")
    assert {os.path.relpath(path, package) for path in files} == {f"acme/{name}" for name in names}
    assert {os.path.relpath(p, package) for p in remote_code.collect("-m spaces.deep.say")} == {
        "spaces/deep/say.py",
        "beside.py",
    }
    assert remote_code.folder_shown("-m acme.inner.see") == package


def test_such_a_rank_runs_it_without_files(package, tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom client_shim.replica.remote_code import *\n"
        "from client_shim.script import run_script\nimport shutil\n"
        "files, folder = collect('-m acme.inner.see'), str(folder_shown('-m acme.inner.see'))\n"
        "shutil.rmtree('acme')\nunpack(files, folder, Path('scratch'))\nrun_script('-m acme.inner.see', [])\n"
    )
    expected = plain("acme.inner.see").stdout
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (shown.stdout, shown.stderr) == (expected, "")
