"""The start of a member process before its first job."""

import gc
import sys

import pytest
import tensorflow as tf
from tensorflow.python.autograph.pyct import loader

from fdt.environment import hidden, keep_generated_code, lasting


def test_generated_code_is_written_into_the_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(loader, "tempfile", loader.tempfile)  # put back what we replace
    keep_generated_code(tmp_path)

    @tf.function
    def sign(x):
        if x > 0:
            return 1
        return -1

    assert int(sign(tf.constant(2.0))) == 1
    assert list(tmp_path.glob("__autograph_generated_file*.py"))


def test_garbage_is_not_looked_for_among_what_lasts():
    before = gc.get_freeze_count()
    with lasting():
        made = [[] for _ in range(100)]
        assert not gc.isenabled()
    assert gc.isenabled() and gc.get_freeze_count() >= before + len(made)
    with pytest.raises(ImportError), lasting():
        raise ImportError
    assert gc.isenabled()


def test_collection_that_was_off_stays_off():
    gc.disable()
    try:
        with lasting():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_hidden_packages_are_as_if_not_installed_and_back_afterwards(tmp_path, monkeypatch):
    (tmp_path / "fdt_test_optional").mkdir()
    (tmp_path / "fdt_test_optional" / "__init__.py").touch()
    (tmp_path / "fdt_test_optional" / "part.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with hidden(["fdt_test_optional", "gc"]):
        import gc as imported

        assert imported is gc, "what is imported already stays"
        with pytest.raises(ImportError):
            import fdt_test_optional
        with pytest.raises(ImportError):
            import fdt_test_optional.part
    import fdt_test_optional.part  # noqa: F401

    assert sys.modules.pop("fdt_test_optional.part") and sys.modules.pop("fdt_test_optional")
