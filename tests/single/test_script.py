"""A script runs as `python script.py` would run it."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import client_shim
from client_shim.script import run_script
from fdt import PACKAGES
from fdt.errors import CaptureError, UserError
from fdt.report import Screen

ENGINE = SimpleNamespace(hello=SimpleNamespace(engine="hfdt", workers=1))


def script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text)
    return str(path)


def plain(path: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, path, *words], capture_output=True, text=True, timeout=60)


SEES = """
import os, sys
print(__name__, __file__, __package__, __spec__, sys.argv, sys.path[0], os.getcwd())
print(sys.modules["__main__"].__dict__ is globals(), __doc__, type(__loader__).__name__)
"""


def test_sees_what_python_shows_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = script(tmp_path, SEES)
    assert run_script(path, ["--lr", "0.1"]) == 0
    assert capfd.readouterr().out == plain(path, "--lr", "0.1").stdout


def test_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    before = sys.modules["__main__"], sys.argv, list(sys.path)
    run_script(script(tmp_path, "import sys; sys.argv.append('x'); sys.path.append('y')"), [])
    assert (sys.modules["__main__"], sys.argv, sys.path) == before


@pytest.mark.parametrize(
    "text",
    [
        "import sys; sys.exit()",
        "import sys; sys.exit(3)",
        "import sys; sys.exit('gone wrong')",
        "raise SystemExit(256+7)",
    ],
)
def test_exit_codes(tmp_path: Path, text: str, capfd: pytest.CaptureFixture[str]) -> None:
    path = script(tmp_path, text)
    expected = plain(path)
    assert run_script(path, []) == expected.returncode
    assert capfd.readouterr().err == expected.stderr


def test_an_interrupt_is_130(tmp_path: Path) -> None:
    assert run_script(script(tmp_path, "raise KeyboardInterrupt"), []) == 130


def test_its_own_traceback(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = script(
        tmp_path, "def f():\n    {}['key']\ntry:\n    f()\nexcept KeyError as e:\n    raise ValueError('no') from e\n"
    )
    expected = plain(path)
    assert run_script(path, []) == expected.returncode == 1
    assert capfd.readouterr().err == expected.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_frames_of_ours_are_not_in_it(package: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ours = Path(__file__).parents[2] / package / "between.py"
    text = f"def f():\n    {{}}['key']\nexec(compile('f()', {str(ours)!r}, 'exec'))\n"
    assert run_script(script(tmp_path, text), []) == 1
    said = capfd.readouterr().err
    assert "KeyError: 'key'" in said and "in f" in said and f'File "{ours}"' not in said


def test_a_syntax_error_is_shown_with_its_place(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="is not valid Python"):
        run_script(script(tmp_path, "x = (\n"), [])
    assert "script.py" in capfd.readouterr().err


def test_no_such_script(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such script\. Received: .*nowhere\.py"):
        run_script(str(tmp_path / "nowhere.py"), [])


@pytest.mark.parametrize("line", ["import os, replica.inner as inner", "def late():\n    from replica import thing"])
def test_a_module_beside_it_with_the_name_of_a_package_of_ours_is_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "replica.py").touch()
    number = line.count("\n") + 1
    with pytest.raises(UserError, match=rf"script\.py:{number} imports .*replica\.py, whose name .* rename it"):
        run_script(script(tmp_path, line), [])
    assert run_script(script(tmp_path, "import os"), []) == 0


def test_an_error_of_ours_goes_to_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(CaptureError):
        run_script(script(tmp_path, "from fdt.errors import CaptureError\nraise CaptureError('what')"), [])


def test_pickles_of_its_own_classes(tmp_path: Path) -> None:
    text = "import pickle\nclass C: pass\nassert type(pickle.loads(pickle.dumps(C()))) is C\n"
    assert run_script(script(tmp_path, text), []) == 0


def test_processes_that_it_spawns_find_its_functions(tmp_path: Path) -> None:
    text = """
import multiprocessing

def double(x):
    return 2 * x

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(double, [1, 2]) == [2, 4]
"""
    command = "import sys; from client_shim.script import run_script; sys.exit(run_script(sys.argv[1], []))"
    path = script(tmp_path, text)
    subprocess.run([sys.executable, "-c", command, path], check=True, timeout=100, cwd=Path(__file__).parents[2])


FORKS = """
import os, sys
for way in ("end", "exit", "raise", "signal"):
    child = os.fork()
    if child:
        print(way, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    elif way == "exit":
        sys.exit(3)
    elif way == "raise":
        raise ValueError("on purpose")
    elif way == "signal":
        import signal
        from fdt.signals import Ended
        raise Ended(signal.SIGTERM)
    else:
        break
"""


def test_a_child_that_it_forks_ends_at_the_scripts_end(tmp_path: Path) -> None:
    """It would end the run, its members and its files, which are its parent's."""
    code = "import sys; from client_shim.script import run_script; run_script(sys.argv[1], []); print('the run ends')"
    argv = [sys.executable, "-c", code, script(tmp_path, FORKS)]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.splitlines() == ["end 0", "exit 3", "raise 1", "signal 143", "the run ends"]
    assert ran.stderr.splitlines()[-1] == "ValueError: on purpose"


def test_a_script_that_never_trains_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    screen = Screen("hfdt", adds_steps=False)
    assert client_shim.run(script(tmp_path, "print('done')"), [], ENGINE, reporters=screen) == 0
    out, err = capfd.readouterr()
    assert out == "done\n"
    assert err == "hfdt: the script called no fit(), so nothing was trained on workers\n"


def test_tensorflow_is_the_scripts_to_import(tmp_path: Path) -> None:
    text = "import sys, client_shim; sys.exit('tensorflow' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", text], env=env, timeout=60).returncode == 0


def test_another_backend_is_refused_by_name(tmp_path: Path) -> None:
    from client_shim.imports import _refuse

    with pytest.raises(CaptureError, match="Received: KERAS_BACKEND=jax"):
        _refuse("jax")
