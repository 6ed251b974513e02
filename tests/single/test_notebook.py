"""A notebook as a script: its cells, its magics, and errors that name cell and line."""

import inspect
import json
import linecache
import subprocess
import sys
from pathlib import Path

import pytest

from client_shim import notebook
from client_shim.replica import remote_code
from client_shim.replica.detection import detect_capture
from client_shim.replica.rewriting import rewrite
from client_shim.script import run_script
from fdt.errors import UserError


@pytest.fixture
def written(tmp_path):
    def write(*cells, **metadata):
        path = tmp_path / "train.ipynb"
        listed = [{"cell_type": "code", "source": text.splitlines(keepends=True)} for text in cells]
        listed.insert(1, {"cell_type": "markdown", "source": "no code"})
        path.write_text(json.dumps({"cells": listed, "metadata": metadata, "nbformat": 4}))
        return str(path)

    return write


@pytest.mark.parametrize(
    ("cell", "code"),
    [
        ("%matplotlib inline\nx = 1", "pass\nx = 1"),
        ("%%time\nfit()", "pass\nfit()"),
        ("%%hfdt -np 2\nfit()", "pass\nfit()"),
        ("if a:\n    %time f(x)", "if a:\n    f(x)"),
        ("%timeit -n 10 f(x)", "f(x)"),
        ("%time", "pass"),
        ("%time -x + 1", "-x + 1"),
        ("%%timeit -n 3 x = 1\nf(x)", "x = 1\nf(x)"),
        ("s = 'a\x0cb\u2028c'\n%time", "s = 'a\x0cb\u2028c'\npass"),  # neither ends a line of Python
        ("x = (5\n%3)", "x = (5\n%3)"),
        ('s = """\n%bash\n!ls\n"""', 's = """\n%bash\n!ls\n"""'),
        ("%env A=b c", "__import__('os').environ['A'] = 'b c'"),
        ("%cd /tmp", "__import__('os').chdir(__import__('os').path.expanduser('/tmp'))"),
        ("x = 1 +", "x = 1 +"),  # left to the compiler
        ("", ""),
    ],
)
def test_magics_that_mean_nothing_in_a_script_leave_their_lines(cell, code):
    assert notebook.without_magics(cell, "n") == code


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        ("x = 1\n!ls", 2),
        ("a = !ls", 1),
        ("x?", 1),
        ("?x", 1),
        ("\n%%bash\nls", 2),
        ("def f():\n    %run a.py", 2),
        ("f = %time 3", 1),
        ("%pip install x", 1),
        ("!echo 'it\"", 1),
        ("%env A", 1),
        ("%env A={x}", 1),  # IPython would insert x
        ("%env A=$HOME", 1),
        ("%cd it's", 1),
        ("%cd -q /tmp", 1),
        ("%cd my folder", 1),
        ("%pylab inline", 1),  # it would import names
    ],
)
def test_other_magics_are_refused_with_cell_and_line(cell, line, written):
    with pytest.raises(UserError) as refused:
        run_script(written("x = 1", cell), [])
    assert f"train.ipynb, cell 2, line {line}; remove it" in str(refused.value)


def test_cells_run_in_order_in_one_namespace(written, capsys):
    path = written(
        "from __future__ import annotations\nimport sys",
        "def f(x: unknown): return x",  # holds only with the first cell's __future__
        "display(f(sys.argv))\nimport __main__\nprint(__main__.f is f, __name__)\nf",
    )
    assert run_script(path, ["--epochs", "3"]) == 0
    assert capsys.readouterr().out == f"['{path}', '--epochs', '3']\nTrue __main__\n"


def test_a_traceback_has_cells_and_their_lines(written, capsys):
    path = written("def f():\n\n    raise ValueError('no')", "x = 1\nf()")
    assert run_script(path, []) == 1
    err = capsys.readouterr().err
    assert f'File "{path}, cell 2", line 2, in <module>\n    f()\n' in err
    assert f"File \"{path}, cell 1\", line 3, in f\n    raise ValueError('no')\n" in err
    assert "client_shim" not in err


def test_a_cell_that_is_no_python_is_named(written, capsys):
    path = written("x = 1", "y = 2\nx = = 3")
    with pytest.raises(UserError, match="is not valid Python: SyntaxError, see above"):
        run_script(path, [])
    assert f'File "{path}, cell 2", line 2' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("no json", "must be JSON of nbformat 4"),
        ("[" * 10**5, "must be JSON of nbformat 4"),
        ("[]", "must be JSON of nbformat 4"),
        ('{"worksheets": []}', "must be JSON of nbformat 4"),
        ('{"cells": [{"cell_type": "code"}]}', "must be JSON of nbformat 4"),
        ('{"cells": [], "metadata": {"kernelspec": {"language": "R"}}}', "must be Python's"),
    ],
)
def test_what_is_no_notebook_of_python_is_refused(content, said, tmp_path):
    path = tmp_path / "train.ipynb"
    path.write_text(content)
    with pytest.raises(UserError, match=said):
        run_script(str(path), [])
    assert detect_capture(str(path)).capture == "extract"  # running it reports the error


def test_capture_detection_names_cell_and_line(written):
    path = written("import keras", "x = 1\nfor batch in data:\n    model.train_on_batch(batch)")
    (found,) = detect_capture(path).findings
    assert str(found).startswith(f"{path}, cell 2:3: replica: train_on_batch")


def test_rewritten_cells_keep_their_lines(written):
    step = "with tf.GradientTape() as tape:\n        loss = f(batch)\n    apply(tape.gradient(loss, v))"
    path = Path(written("x = 1\n\n", f"for batch in data:\n    {step}"))
    cells = notebook.read("train.ipynb", path.read_bytes())
    first, second = notebook.compiled(cells, rewrite)
    lines = {line for _, _, line in second.co_lines() if line}
    assert (first.co_filename, second.co_filename) == ("train.ipynb, cell 1", "train.ipynb, cell 2")
    assert lines <= {0, 1, 2, 3, 4} and {2, 3, 4} <= lines
    assert "__fdt_hands__" in second.co_names


def test_workers_get_the_source_of_functions_that_no_file_has(written):
    from fdt.keras import pickling

    path = Path(written("def doubled(x):\n    return 2 * x"))
    (cell,) = notebook.read(path, path.read_bytes())
    names = {"__name__": "__main__"}
    exec(compile(cell.text, cell.name, "exec"), names)
    data, _ = pickling.dumps(names["doubled"], ())
    del linecache.cache[cell.name]
    function, _ = pickling.loads(data)
    assert function(3) == 6
    assert inspect.getsource(function) == "def doubled(x):\n    return 2 * x\n"


def test_ranks_on_other_hosts_get_the_modules_that_cells_import(written, tmp_path):
    (tmp_path / "mine.py").write_text("")
    path = written("x = 1", "%matplotlib inline\nimport mine")
    assert set(remote_code.collect(path)) == {path, str(tmp_path / "mine.py")}


def test_a_notebook_needs_the_command_run(capsys):
    from hfdt.cli import main

    with pytest.raises(SystemExit):
        main(["train.ipynb"])
    assert "a script needs the command run: hfdt run train.ipynb" in capsys.readouterr().err


def test_loading_the_package_imports_no_front_end():
    code = "import hfdt, nfdt, sys; print(any(name.startswith(('frontends', 'click')) for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
