"""The error that a worker reports, and its attribution to the script, a library or the user."""

import re
import site

import pytest

from fdt.errors import CaptureError
from fdt.service.blame import failure, one_line


def raised(source, name):
    try:
        exec(compile(source, name, "exec"), {})
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_an_error_for_the_user_is_its_own_line():
    told = failure(CaptureError("x must be y. Received: z"))
    assert (told.message, told.detail, told.users_code) == ("x must be y. Received: z", "", False)


def test_the_scripts_own_error_comes_with_its_own_frames_only():
    told = failure(raised("def f():\n    raise ValueError('no\\nmore')\nf()", "/home/me/train.py"))
    assert told.users_code
    assert told.message == "ValueError: no"
    assert "/home/me/train.py" in told.detail


def test_in_one_line_an_error_has_the_scripts_own_place():
    inside = "import json\ndef f():\n    json.loads('{')\nf()"
    assert re.fullmatch(r"JSONDecodeError: .*, at /home/me/train.py:3", one_line(raised(inside, "/home/me/train.py")))


def test_what_failed_in_a_graph_is_said():
    import tensorflow as tf

    bad = tf.function(lambda x: tf.debugging.check_numerics(x / 0.0, "no number"))
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        bad(tf.constant([1.0]))
    assert one_line(raised.value).startswith("InvalidArgumentError: no number")
    place = (
        "Graph execution error:\n\nDetected at node x defined at (most recent call last):\n  File train.py, line 3\n\n"
    )
    for text in (
        "no number\n\t [[{{node x}}]]",
        "no number\n\t [[{{node x}}]]\nHint: see more.\n [Op:__inference_f_4]",
        "2 root error(s) found.\n  (0) INTERNAL:  no number\n\t [[{{node x}}]]\n\t [[g/_4]]\n0 derived errors ignored.",
    ):
        error = tf.errors.InternalError(None, None, place + text)
        assert one_line(error) == "InternalError: no number"


@pytest.mark.parametrize("name", ["<string>", f"{site.getusersitepackages()}/tensorflow/ops.py"])
def test_generated_code_and_the_users_site_are_not_the_scripts(name):
    error = raised("1 / 0", name)
    error.__traceback__ = error.__traceback__.tb_next  # this test's own frame stands for a script's
    assert not failure(error).users_code


def test_what_only_libraries_did_is_not_the_scripts():
    import json

    def inside(text):
        try:
            json.loads(text)
        except ValueError as error:
            error.__traceback__ = error.__traceback__.tb_next  # this test's own frame stands for a script's
            return error
        raise AssertionError("nothing was raised")

    told = failure(inside("{"))
    assert not told.users_code
    assert told.message.startswith("JSONDecodeError: ")
    assert "json/decoder.py" in told.detail


def test_an_error_of_a_traced_function_is_named_by_its_cause():
    frames = 'in user code:\n\n    File "keras/trainer.py", line 59, in train_step  *\n        y = self(x)\n\n'
    assert one_line(ValueError(f"{frames}    ValueError: Cannot reshape\n")) == "ValueError: Cannot reshape"
