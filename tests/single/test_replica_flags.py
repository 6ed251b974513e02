"""Flags in attributes and in variables of a module: they decide whether a loop trains, as its names do."""

from pathlib import Path

import pytest

from client_shim.replica import steps

SCRIPT = """
import tensorflow as tf
seen = []

class Trainer:
    def __init__(self): self.training, self.inner = True, self
    def step(self, x):
        with tf.GradientTape() as tape: pass
        self.update()
    def update(self):
        if self.inner.training: optimizer.apply_gradients([])
    def set_here(self, x):
        self.training = True
        if self.training: optimizer.apply_gradients([])
    def set_owner_here(self, x):
        self.inner = other
        if self.inner.training: optimizer.apply_gradients([])
    @property
    def off(self): raise AssertionError
    def asked(self, x):
        if self.off: optimizer.apply_gradients([])
    def passed(self, x):
        self.given(self.training)
    def given(self, apply):
        if apply: optimizer.apply_gradients([])
    @tf.function
    def compiled(self, x):
        with tf.GradientTape() as tape: pass
        if self.training: optimizer.apply_gradients([])

class Slotted:
    __slots__ = ("training", "line")
    def __getattr__(self, name): raise KeyError(name)

trainer, other, slotted, TRAINING = Trainer(), Trainer(), Slotted(), True

def of_module(x):
    if TRAINING: optimizer.apply_gradients([])

def loop(step):
    for x in range(1):
        seen.append(steps.loop_at_work().trains)
        if x: step(x)

def inline(owner, training):
    owner.training = training
    for x in range(1):
        seen.append(steps.loop_at_work().trains)
        if x and owner.training: optimizer.apply_gradients([])

def told(owner, line):
    owner.line = line
    for x in range(1):
        seen.append(steps.loop_at_work())
        if x: tell(owner.line)

def tell(line): pass

def held(owner, training, name="step"):
    owner.training = training
    loop(getattr(owner, name))

def direct(owner, training):
    owner.training = training
    for x in range(1):
        seen.append(steps.loop_at_work().trains)
        if x: owner.step(x)

def both(first, second):
    for x in range(1):
        seen.append(steps.loop_at_work().trains)
        if x: first.step(x), second.step(x)

def changed(owner):
    for x in range(1):
        seen.append(steps.loop_at_work().trains)
        owner.training = True
        if x and owner.training: optimizer.apply_gradients([])
"""


@pytest.fixture
def names(tmp_path):
    path = str(tmp_path / "flags_of_a_script.py")
    Path(path).write_text(SCRIPT)
    found = {"__name__": "flags", "__file__": path, "steps": steps, "optimizer": None}
    exec(compile(SCRIPT, path, "exec"), found)
    return found


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("inline(trainer, True), inline(trainer, False), inline(other, True)", [True, False, True]),
        ("direct(trainer, True), direct(trainer, False), direct(other, True)", [True, False, True]),
        ("direct(trainer, False), direct(trainer, True)", [False, True]),
        ("inline(slotted, True), inline(slotted, False)", [True, False]),
        ("held(trainer, False), held(trainer, True), held(trainer, False)", [False, True, False]),
        ("held(trainer, False), held(other, True)", [False, True]),
        ("held(trainer, False, 'passed'), held(trainer, True, 'passed')", [False, True]),
        ("held(trainer, False, 'set_here'), held(trainer, False, 'asked')", [True, True]),
        ("held(trainer, False, 'set_owner_here')", [True]),
        ("trainer.training = False\nboth(trainer, other), both(trainer, trainer)", [True, False]),
        ("trainer.training = False\nchanged(trainer)", [True]),
        ("loop(of_module)\nTRAINING = False\nloop(of_module)", [True, False]),
    ],
)
def test_flags_in_attributes_and_modules_decide_whether_a_loop_trains(names, code, expected):
    exec(compile(code, "flags_used", "exec"), names)
    assert names["seen"] == expected


def test_a_compiled_function_keeps_the_flag_of_its_trace(names):
    names["trainer"].training = False
    assert steps.function_trains(names["trainer"].compiled)


def test_a_text_in_an_attribute_that_a_call_passes_on_is_analysed_once(names):
    exec("for i in range(9): told(trainer, f'loss {i}')", names)
    assert len(set(map(id, names["seen"]))) == 1
