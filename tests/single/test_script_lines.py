"""The lines of the script and of packages behind operations (hfdt/exactness/script_lines.py)."""

import sysconfig
from types import SimpleNamespace

import pytest
import tensorflow as tf

from client_shim.script import OUR_FOLDERS
from hfdt.exactness.script_lines import line_of_script, made_by_script

SITE = sysconfig.get_path("purelib")
SCRIPT, PACKAGE = "/home/me/train.py", f"{SITE}/my_losses/focal.py"
MATH, OPS = f"{SITE}/tensorflow/python/ops/math.py", f"{SITE}/keras/src/ops/math.py"
TRAINER, TREE = f"{SITE}/keras/src/trainer.py", f"{SITE}/optree/ops.py"
OURS, TEST_RUNNER = f"{OUR_FOLDERS[0]}job.py", f"{SITE}/_pytest/python.py"


@pytest.mark.parametrize(
    ("innermost_first", "line"),
    [
        ([MATH, OPS, SCRIPT, TRAINER], "train.py:3"),
        ([MATH, OPS, TRAINER, SCRIPT], ""),
        ([MATH, OPS, PACKAGE, TRAINER, SCRIPT], "focal.py:3"),
        ([MATH, PACKAGE, SCRIPT, TRAINER], "train.py:3"),
        ([MATH, TREE, TRAINER], ""),
        ([MATH, OURS, TRAINER], ""),
        ([MATH, OURS, TEST_RUNNER], ""),
        ([f"{SITE}/tensorflow/python/ops/gradients_util.py", PACKAGE, TRAINER], ""),
        ([], ""),
    ],
)
def test_the_first_code_that_is_not_keras_made_an_operation(innermost_first, line):
    frames = [SimpleNamespace(filename=path, lineno=3, name="call") for path in reversed(innermost_first)]
    assert line_of_script(SimpleNamespace(traceback=frames)) == line


def test_operations_of_functions_that_keras_calls_count():
    as_keras = "lambda step, spec: tf.function(lambda x: step(x), autograph=False).get_concrete_function(spec).graph"
    graph = eval(compile(as_keras, TRAINER, "eval"), {"tf": tf})
    called = graph(tf.function(lambda x: x + 1), tf.TensorSpec([]))
    assert not any(line_of_script(op) for op in called.get_operations())
    assert made_by_script(called)
    assert not made_by_script(graph(tf.identity, tf.TensorSpec([])))


def test_functions_of_tensorflow_1_are_no_code_of_the_script():
    def loss(logits):
        labels = tf.ones([1, 2], tf.int32)
        return tf.nn.ctc_loss(labels, logits, [2], [4], logits_time_major=False, blank_index=0)

    graph = tf.function(loss, autograph=False).get_concrete_function(tf.TensorSpec([1, 4, 3])).graph
    assert any(not hasattr(function, "graph") for function in graph._functions.values())
    assert made_by_script(graph)
