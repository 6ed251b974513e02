"""Capture detection: which capture a script gets, and which of its loops and functions train."""

import functools
import importlib
import os
import site
import sys
import threading

import pytest
import tensorflow as tf

from client_shim.replica import steps
from client_shim.replica.command import wanted
from client_shim.replica.detection import detect_capture, with_own_updates
from fdt.errors import UserError

TAPE = """
def train(x):
    with tf.GradientTape() as tape:
        loss = f(x)
    optimizer.apply_gradients(zip(tape.gradient(loss, v), v))
"""
FIT = "model.fit(x, y, epochs=2)\n"
MODEL = """
class GAN(keras.Model):
    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self(data)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, v), v))
"""


@pytest.fixture
def script(tmp_path):
    def write(text, name="script.py"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.parametrize(
    ("text", "capture"),
    [
        (FIT, "extract"),
        (MODEL + FIT, "extract"),
        (TAPE, "replica"),
        (TAPE + FIT, "replica"),
        ("loss = model.train_on_batch(x, y)", "replica"),
        ("optimizer.minimize(loss, variables)", "replica"),
        ("self.opt.apply(gradients, variables)", "replica"),
        ("scipy.optimize.minimize(f, x0)", "extract"),
        ("dataset.apply(f); classifier.fit(x, y)", "extract"),
        ("print(1)", "extract"),
        ("df['option'].apply(f)", "extract"),
        ("import scipy.optimize as opt\nopt.minimize(f, x0)", "extract"),
        ("self.optimizers[0].apply(gradients, variables)", "replica"),
        ("class Base(keras.Model): pass\n" + MODEL.replace("keras.Model", "Base") + FIT, "extract"),
    ],
)
def test_the_source_says_which_capture(script, text, capture):
    assert detect_capture(script(text)).capture == capture


def test_what_is_asked_for_wins(script):
    assert not wanted(script(TAPE), {"capture": "extract"}, ())
    assert wanted(script(TAPE), {"capture": None}, ())


def test_a_model_with_several_optimizers_is_for_engines_that_capture_them(script):
    made = "model = GAN()\n" + FIT
    two = MODEL.replace("self.optimizer", "self.d_optimizer") + "        self.optimizer.apply(g, w)\n"
    inherited = two + "class Mine(GAN): pass\nmodel = Mine()\n" + FIT
    renamed = MODEL + "        opt = self.optimizer\n        opt.apply(g, w)\n" + made
    unused = two + "model = keras.Sequential([])\n" + FIT
    given, texts = {"capture": None}, (two + made, inherited, MODEL + made, renamed, unused)
    assert [wanted(script(text), given, (), several=False) for text in texts] == [True, True, False, False, False]
    assert not wanted(script(two + made), given, ())


def test_modules_beside_the_script_are_looked_into(script):
    script(TAPE, "helper.py")
    found = detect_capture(script("import helper\nhelper.train(1)"))
    (finding,) = found.findings
    assert finding.path.endswith("helper.py")
    assert "apply_gradients in train, outside fit" in finding.why


def test_packages_beside_the_script_are_looked_into(script, tmp_path):
    (tmp_path / "pkg" / "inner").mkdir(parents=True)
    script("from .inner.loop import train", "pkg/__init__.py")
    script("from ..steps import train", "pkg/inner/loop.py")
    script(TAPE, "pkg/steps.py")
    assert detect_capture(script("from pkg import train")).capture == "replica"


def test_a_models_base_may_stand_in_another_module(script):
    script("import keras\nclass Base(keras.Model): pass", "base.py")
    derived = MODEL.replace("keras.Model", "Mine") + FIT
    assert detect_capture(script("from base import Base as Mine\n" + derived)).capture == "extract"
    assert detect_capture(script("from some_library import Mine\n" + derived)).capture == "extract"


def test_only_what_the_scripts_own_thread_reads_is_the_scripts(module):
    asked = []
    exec(compile("def ask(): return by_script()", module["__file__"], "exec"), names := {"by_script": within})
    asked.append(names["ask"]())
    thread = threading.Thread(target=lambda: asked.append(names["ask"]()))
    thread.start()
    thread.join(60)
    assert asked == [True, False]
    tf.numpy_function(lambda: asked.append(names["ask"]()), [], [])  # in this thread, when TensorFlow needs it
    assert asked == [True, False, False]


def within():
    return steps.by_script()


def test_weights_moved_by_hand_are_refused_with_the_line(script):
    path = script("with tf.GradientTape() as tape:\n    loss = f()\nw.assign_sub(0.1 * tape.gradient(loss, w))")
    assert with_own_updates(detect_capture(path), divides=True).capture == "replica"
    with pytest.raises(UserError, match=r"script.py:3 assigns to weights"):
        with_own_updates(detect_capture(path), divides=False)
    found = detect_capture(script(TAPE + "average.assign_sub(1)"))
    assert with_own_updates(found, divides=False) is found


LEARN = """
class Net(keras.Model):
    def learn(self, x):
        with tf.GradientTape() as tape:
            loss = self(x)
        self.move(tape.gradient(loss, self.w))

    def move(self, gradient):
        self.w.assign_sub(gradient)

    def train_step(self, data):
        pass

    def follow(self, other):
        self.w.assign(other.w)

net = Net()
"""


def test_weights_that_a_method_moves_count_where_fit_does_not_call_it(script):
    def capture(text):
        return with_own_updates(detect_capture(script(text)), divides=True).capture

    assert capture(LEARN + "for x in data: net.learn(x)") == "replica"
    with pytest.raises(UserError, match=r"script.py:9 assigns to weights"):
        with_own_updates(detect_capture(script(LEARN + "for x in data: net.learn(x)")), divides=False)
    assert capture(LEARN + "step = tf.function(net.learn)\nfor x in data: step(x)") == "replica"
    assert capture(LEARN + "learn = net.learn\nfor x in data: learn(x)") == "replica"
    assert capture(LEARN + FIT) == "extract"
    assert capture(LEARN.replace("pass", "self.learn(data)") + FIT + "\nnet.move(0.0)\nsettings.learn(1)") == "extract"
    shown = LEARN.replace("self.move(tape", "return (tape")
    assert capture(shown + FIT + "\nprint(net.learn(x))\nnet.follow(other)") == "extract"  # a map of saliency
    callback = LEARN.replace("keras.Model", "keras.callbacks.Callback").replace("train_step(self, data):\n        pass",
        "on_epoch_end(self, epoch):\n        self.learn(epoch)")  # fmt: skip
    assert capture(callback + FIT + "\nlearn(1)") == "extract"


SESSION = """
import tensorflow.compat.v1 as tf
with tf.Session() as session:
    session.run(w.assign_sub(tf.gradients(loss, w)[0]))
"""


def test_sessions_that_take_gradients_are_replicas(script):
    penalty = script("import tensorflow as tf\n\n\ndef penalty(x): return tf.gradients(f(x), x)", "penalty.py")
    assert not wanted(penalty, {"capture": None}, ())
    assert wanted(script(SESSION), {"capture": None}, ())


LOOPS = """
import tensorflow as tf
seen = []

def note():
    seen.append(steps.loop_at_work())

class Batches:
    def __init__(self): self.left = 1
    def __iter__(self): return self
    def __next__(self):
        note()
        if not self.left: raise StopIteration
        self.left -= 1

def eager(x):
    with tf.GradientTape() as tape: pass
    optimizer.apply_gradients([])

@tf.function
def compiled(x):
    with tf.GradientTape() as tape: pass
    optimizer.apply_gradients([])

class Trainer:
    @tf.function
    def step(self, x):
        with tf.GradientTape() as tape: pass
        self.opt.apply_gradients([])

for epoch in range(1):
    for _ in Batches():
        if False: eager(1)
    for _ in Batches():
        if False: compiled(1)
    for _ in Batches():
        if False: print(1)
    next(Batches())
for _ in range(1):
    next(Batches())
    if False: eager(1)
trainer = Trainer()
"""


@pytest.fixture
def module(script, tmp_path, monkeypatch):
    path = script(LOOPS, "loops_of_a_script.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = {"__name__": "loops", "__file__": path, "steps": steps, "optimizer": None}
    exec(compile(LOOPS, path, "exec"), names)
    return names


def test_a_loop_is_divided_when_its_own_body_applies_gradients(module):
    by_line = {site.first: site.trains for site in module["seen"]}
    assert list(by_line.values()) == [True, False, False, False, True]  # compiled steps divide their arguments
    assert not any(site.running() for site in module["seen"])


def test_step_functions_are_known(module):
    assert steps.function_trains(module["compiled"])
    assert steps.function_trains(module["eager"])
    assert steps.function_trains(module["trainer"].step)
    assert not steps.function_trains(module["note"])
    assert not steps.function_trains(tf.function(lambda x: x))


ALIASED = """
import tensorflow as tf

def step(x):
    with tf.GradientTape() as tape: pass
    update([])
"""


@pytest.mark.parametrize("keras", ["keras", "tf_keras"])
def test_an_update_is_known_by_its_method_whatever_the_script_calls_it(script, keras):
    sgd = importlib.import_module(keras).optimizers.SGD()
    names = {"__name__": "aliased", "update": sgd.apply_gradients}
    exec(compile(ALIASED, script(ALIASED, "aliased.py"), "exec"), names)
    assert steps.function_trains(names["step"])
    names["update"] = sgd.get_config
    assert not steps.function_trains(names["step"])


ONE_LOOP = """
import functools
import tensorflow as tf
seen = []

def made(compiled):
    def step(x):
        with tf.GradientTape() as tape: pass
        optimizer.apply_gradients([])
    return tf.function(step) if compiled else step

class Trainer:
    def __init__(self, compiled): self.run = made(compiled)
    def step(self, x): return self.run(x)

def either(x, training=False, optimizer=None, mode="fit"):
    with tf.GradientTape() as tape: pass
    if not training and optimizer is None:
        return 0
    if mode == "fit":
        optimizer.apply_gradients([])

def again(x, training):
    training = training or x
    either(x, training)

def around(x, training):
    def inner(training):
        either(x, training)
    inner(True)

def loop(step):
    for x in range(1):
        seen.append(steps.loop_at_work().trains)
        if x: step(x)

def trainer(trainer):
    for x in range(1):
        seen.append(steps.loop_at_work().trains)
        if x: trainer.step(x)

def passing(flag):
    for x in range(1):
        seen.append(steps.loop_at_work().trains)
        if x: either(x, flag)

def inline(training):
    for x in range(1):
        seen.append(steps.loop_at_work().trains)
        if not x: continue
        with tf.GradientTape() as tape: pass
        if training: optimizer.apply_gradients([])

def changing():
    for x in range(1):
        training = False
        seen.append(steps.loop_at_work().trains)
        if x: either(x, training)
"""


@pytest.fixture
def one_loop(script):
    path = script(ONE_LOOP, "one_loop.py")
    names = {"__name__": "one_loop", "__file__": path, "steps": steps, "optimizer": None}
    exec(compile(ONE_LOOP, path, "exec"), names)
    return names


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("loop(made(True)), loop(made(False)), loop(made(True))", [False, True, False]),
        ("loop(made(False)), loop(made(True))", [True, False]),
        ("loop(lambda x, f=made: 0), loop(functools.partial(made(False)))", [False, True]),
        ("trainer(Trainer(True)), trainer(Trainer(False))", [False, True]),
        ("passing(True), passing(False), passing(None), passing(True)", [True, False, False, True]),
        ("inline(True), inline(False), inline(True)", [True, False, True]),
        ("changing()", [True]),
    ],
)
def test_one_loop_is_judged_by_what_it_runs_now(one_loop, code, expected):
    exec(compile(code, "one_loop_used", "exec"), one_loop)
    assert one_loop["seen"] == expected


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((1, True), {}, True),
        ((1, False), {}, False),
        ((1,), {}, False),
        ((1,), {"optimizer": object()}, True),
        ((1, True), {"mode": "test"}, False),
        ((1, tf.constant(True)), {}, True),
        ((1, 0), {}, True),
    ],
)
def test_flags_say_whether_a_call_trains(one_loop, args, kwargs, expected):
    assert steps.function_trains(one_loop["either"], (args, kwargs)) == expected
    assert steps.function_trains(tf.function(one_loop["either"]), (args, kwargs)) == expected
    assert steps.function_trains(functools.partial(one_loop["either"], *args), ((), kwargs)) == expected
    assert steps.function_trains(one_loop["again"], ((1, False), {}))
    assert steps.function_trains(one_loop["around"], ((1, False), {})), "the inner function has its own"


def test_a_loop_runs_while_it_is_on_the_stack():
    code = sys._getframe().f_code
    site = steps.Site(code, code.co_firstlineno, code.co_firstlineno + 10, True)
    assert site.running()
    assert not steps.Site(code, 1, 1, True).running()


def test_a_session_is_tensorflows(script):
    assert detect_capture(script("tf.compat.v1.InteractiveSession(config=c)")).uses_sessions
    assert not detect_capture(script("requests.Session()")).uses_sessions


@pytest.mark.parametrize("folders", [lambda: site.getusersitepackages(), lambda: os.path.dirname(os.__file__)])
def test_packages_of_a_user_and_of_python_are_no_part_of_the_script(folders):
    assert not steps.of_script(f"{folders()}/keras/src/trainers/trainer.py")
    assert steps.of_script(f"{os.path.dirname(folders())}/train.py")
