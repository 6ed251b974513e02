"""The rewriting of a script's code where an eager step takes its batch; the rest of the code is unchanged."""

import ast
import contextlib
import textwrap

import pytest

from client_shim.replica import rewriting
from client_shim.replica.rewriting import StepHooks, rewrite

LOOP = """
for i in range(3):
    batch = data[i:i+2]
    with open(1), tf.GradientTape() as tape:
        loss = f(model(batch), x=self.y[i:i+2]).mean(batch.shape[0])
    out = [loss]
"""
FUNCTION = """
def step(batch):
    with tf.GradientTape() as tape:
        loss = model(batch)
    if loss:
        return loss, batch[0]
    return None
"""


def rewritten(code):
    return ast.unparse(rewrite(ast.parse(textwrap.dedent(code)))).replace("__fdt_hands__.", "")


def test_an_inline_step_reads_parts_from_its_tape_to_the_end_of_the_loop():
    assert rewritten(LOOP).splitlines() == [
        "for i in range(3):",
        "    done()",
        "    batch = data[i:i + 2]",
        "    with step(), open(1), tf.GradientTape() as tape:",
        "        loss = f(model(local(batch)), x=local(self.y[i:i + 2])).mean(local(array(batch).shape[0]))",
        "    out = [local(loss)]",
    ]


def test_a_step_function_returns_what_is_whole():
    assert rewritten(FUNCTION).splitlines() == [
        "def step(batch):",
        "    with step(), tf.GradientTape() as tape:",
        "        loss = model(local(batch))",
        "    if local(loss):",
        "        return replicated((local(loss), local(batch[0])))",
        "    return replicated(None)",
        "    done()",
    ]


@pytest.mark.parametrize(
    "code",
    [
        "with tf.GradientTape() as tape:\n    y = x * x",
        "def f(x):\n    return x",
        "for x in y:\n    with a as b:\n        x",
    ],
)
def test_what_has_no_step_in_a_loop_or_function_stays(code):
    assert rewritten(code) == code


def test_it_runs_as_before_where_nobody_divides():
    names = {"data": [[1, 2], [3, 4]], "GradientTape": contextlib.nullcontext, "seen": []}
    code = """
for batch in data:
    with GradientTape() as tape:
        seen.append(sum(batch))
    seen.append(batch[0])
"""
    with rewriting.rewritten(StepHooks()):
        exec(compile(rewrite(ast.parse(code)), "script.py", "exec"), names)
    assert names["seen"] == [3, 1, 7, 3]


def test_patterns_of_match_are_left_as_they_are():
    code = """
for x in data:
    match x:
        case Color.RED if f(x):
            with tf.GradientTape() as tape:
                y = f(x)
            tape.gradient(y, w)
        case Point(x=1, y=Color.BLUE):
            pass
match x:
    case Color.RED | {"name": Color.BLUE}:
        pass
"""
    compile(StepHooks().rewrite(ast.parse(code)), "script.py", "exec")
