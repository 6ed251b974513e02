"""What a member does before its first job."""

import tensorflow as tf
from tensorflow.python.autograph.pyct import loader

from fdt.warm import keep_generated_code


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
