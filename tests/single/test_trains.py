"""The detection of scripts that surely never call `fit`: only their engine waits instead of an early start."""

import pytest

from client_shim.command import may_fit

BESIDE = {
    "helper.py": "def train(model):\n    model.fit(1)",
    "harmless.py": "import numpy\nfrom tools import *",
    "tools.py": "'''Makes it fit.'''",
    "pkg/__init__.py": "from .trainer import train",
    "pkg/trainer.py": "def train(model): model.fit(1)",
    "pkg/data.py": "",
    "plain/data.py": "from .names import NAMES",
    "plain/names.py": "NAMES = ()",
    "around/__init__.py": "import helper",
    "around/data.py": "",
    "src/hidden.py": "",
    "partial/__init__.py": "import partial.missing",
    **{f"deep{n}.py": f"import deep{n + 1}" for n in range(9)},
    "deep9.py": "import helper",
}


@pytest.fixture
def script(tmp_path):
    for name, text in BESIDE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    def write(text):
        (tmp_path / "train.py").write_text(text)
        return str(tmp_path / "train.py")

    return write


@pytest.mark.parametrize(
    "text",
    [
        "model.fit(x, y)",
        "train = model.fit",
        "model.fit_generator(batches)",
        "getattr(model, 'fit')(x)",
        "getattr(model, name)(x)",
        "operator.methodcaller('fit', x)(model)",
        "exec(open('helper.py').read())",
        "timeit.timeit('model.fit(x)', globals=globals())",
        "import importlib\nimportlib.import_module('helper')",
        "import helper",
        "from pkg import train",
        "import pkg.data",
        "from pkg.data import x",
        "import around.data",
        "import deep0",
        "import partial",
        "from src import absent",
        "import sys\nsys.path.append('src')\nimport hidden",
        "import keras_tuner\nkeras_tuner.Hyperband(build).search(x, y)",
        "def later():\n    from my_installed_trainer import train",
    ],
)
def test_a_script_that_may_fit_has_its_engine_early(script, text):
    assert may_fit(script(text))


@pytest.mark.parametrize(
    "text",
    [
        "fit = 1\nmodel.predict(x)",
        "import re, os.path, tensorflow as tf\nfrom keras import layers\nimport matplotlib.pyplot as plt",
        "import harmless\nre.compile('x').search(y)\nmodel.compile('sgd')\ngetattr(model, 'name')",
        "from plain.data import NAMES",
        "from plain import data",
        "print('the best fit')",
        "not Python",
    ],
)
def test_one_that_surely_does_not_fit_has_none(script, text):
    assert not may_fit(script(text))
