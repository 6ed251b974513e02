"""The start of a member process before its first job."""

import gc

import pytest
import tensorflow as tf
from tensorflow.python.autograph.pyct import loader

from fdt.early_start import keep_generated_code, lasting


def test_generated_code_goes_with_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(loader, "tempfile", loader.tempfile)  # put back what we replace
    keep_generated_code(tmp_path)

    @tf.function
    def sign(x):
        if x > 0:
            return 1
        return -1

    assert int(sign(tf.constant(2.0))) == 1
    assert list(tmp_path.glob("__autograph_generated_file*.py"))
    keep_generated_code(tmp_path / "on another host")  # nothing there to write to: as before
    assert loader.tempfile.NamedTemporaryFile.args == (tmp_path,)


def test_garbage_is_not_looked_for_among_what_lasts():
    before = gc.get_freeze_count()
    try:
        with lasting():
            made = [[] for _ in range(100)]
            assert not gc.isenabled()
        assert gc.isenabled() and gc.get_freeze_count() >= before + len(made)
        with pytest.raises(ImportError), lasting():
            raise ImportError
        assert gc.isenabled()
    finally:
        gc.unfreeze()
