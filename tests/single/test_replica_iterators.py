"""Iterators over datasets: which ones Python alone reads, and where the script catches errors."""

import pytest

from client_shim.replica.iterators import catching, opened_at, read_elsewhere


class Dataset:
    """Records what is found out about each of its iterators."""

    def __init__(self):
        self.found = []

    def __iter__(self):
        frame = opened_at().f_back
        self.found.append((read_elsewhere(frame), catching()))
        return iter([1, 2, 3])


@pytest.fixture
def run(tmp_path):
    """Runs a script with `dataset`; (why it is read elsewhere, where errors are caught) of its last iterator."""

    def running(code):
        path = tmp_path / f"script{len(list(tmp_path.iterdir()))}.py"
        path.write_text(code)
        dataset = Dataset()
        names = {"dataset": dataset, "use": lambda *_, **__: None, "__name__": "script"}
        exec(compile(code, str(path), "exec"), names)
        return dataset.found[-1]

    return running


READ_BY_PYTHON = [
    "for x in dataset: pass",
    "for i, x in enumerate(dataset): pass",
    "for i, (x, y) in enumerate(zip(\n    dataset, dataset)): pass",
    "kept = [x for x in dataset]",
    "kept = list(dataset)",
    "for x in iter(dataset): pass",
    "import itertools\nfor x in itertools.islice(dataset, 2): pass",
    "batches = iter(dataset)\nfor _ in range(2):\n    x = next(batches)",
    "batches = iter(dataset)\nx = next(batches, None)\nbatches = iter(dataset)",
    "batches = iter(dataset)\nfor x in batches: pass",
    "def rows():\n    for x in dataset:\n        yield x\nlist(rows())",
    "def main():\n    batches = iter(dataset)\n    return [next(batches) for _ in range(2)]\nmain()",
    "it = iter(dataset)\ntry:\n    next(it)\nexcept StopIteration:\n    pass",
]


@pytest.mark.parametrize("code", READ_BY_PYTHON)
def test_python_alone_reads(run, code):
    assert run(code) == ("", "")


READ_ELSEWHERE = [
    "batches = iter(dataset)\nuse(batches)",
    "batches = iter(dataset)\nnext(batches)\nuse(state=batches)",
    "batches = iter(dataset)\nother = batches",
    "batches = iter(dataset)\nif False:\n    batches.get_next_as_optional()",
    "def f():\n    global batches\n    batches = iter(dataset)\nf()\nuse([batches])",
    "use(iter(dataset))",
    "kept = [iter(dataset)]",
    "batches = dataset.__iter__()",
    "from builtins import iter as begun\nuse(begun(dataset))",
    "batches = iter(dataset)\ntry:\n    next(batches)\nexcept Exception:\n    pass",
    "batches = iter(dataset)\nwith __import__('contextlib').suppress(ValueError):\n    next(batches)",
]


@pytest.mark.parametrize("code", READ_ELSEWHERE)
def test_others_may_read(run, code):
    why, _ = run(code)
    assert "script0.py:" in why


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("try:\n    for x in dataset: pass\nexcept ValueError:\n    pass", 1),
        ("def f():\n    for x in dataset: pass\ntry:\n    f()\nexcept (KeyboardInterrupt, Exception):\n    pass", 3),
        ("try:\n    for x in dataset: pass\nexcept:\n    pass", 1),
        ("import contextlib\nwith contextlib.suppress(KeyError):\n    for x in dataset: pass", 2),
        ("try:\n    for x in dataset: pass\nexcept KeyboardInterrupt:\n    pass", 0),
        ("try:\n    for x in dataset: pass\nfinally:\n    pass", 0),
        ("try:\n    use()\nexcept ValueError:\n    pass\nfor x in dataset: pass", 0),
        ("try:\n    raise KeyError\nexcept KeyError:\n    for x in dataset: pass", 0),
    ],
)
def test_where_errors_are_caught(run, code, line):
    why, caught = run(code)
    assert why == ""
    assert caught.endswith(f"script0.py:{line}") if line else caught == ""
