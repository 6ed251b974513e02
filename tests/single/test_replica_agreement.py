"""Values that the ranks of a replicated script read alike without a seed: random numbers, clocks, the order of data."""

import ast
import datetime
import io
import os
import random
import tempfile

import keras
import numpy as np
import pytest
import tensorflow as tf

from client_shim.replica.agreement import agreed
from client_shim.replica.entropy import Streams


class Group:
    """Rank 0 tells the other, which runs after it, what it has read."""

    def __init__(self, rank, told):
        self.rank, self._told = rank, told

    def broadcast(self, value, name):
        if self.rank == 0:
            self._told.append((name, value))
            return value
        asked, said = self._told.pop(0)
        assert asked == name
        return said

    def barrier(self, name):
        self.broadcast(None, name)


@pytest.fixture
def state():
    """Of the process's generators, which `agreed` seeds."""
    before = random.getstate(), np.random.get_state()
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])


@pytest.fixture
def ranks(tmp_path, state):
    """What an expression is on two ranks, one after the other."""

    def read(code, seed=3, clocks=True):
        path, told, seen = tmp_path / "script.py", [], []
        path.write_text(code)
        for rank in range(2):
            with agreed(Group(rank, told), seed, clocks=clocks):
                names = {"tf": tf, "np": np, "keras": keras, "__name__": "script", "__file__": str(path)}
                exec(compile(ast.parse(code), str(path), "exec"), names)
            seen.append(names["seen"])
        assert not told
        return seen

    return read


DRAWN = [
    "np.random.RandomState().rand()",
    "(np.random.seed(), np.random.rand())[1]",
    "np.random.SeedSequence().entropy",
    "np.random.Generator(np.random.PCG64()).random()",
    "np.random.Generator(np.random.Philox()).random()",
    "np.random.default_rng().random()",
    "[np.random.default_rng().random() for _ in range(2)]",
    "__import__('random').Random().random()",
    "(__import__('random').seed(), __import__('random').random())[1]",
    "__import__('random').SystemRandom().random()",
    "__import__('os').urandom(8)",
    "__import__('os').getrandom(8)",
    "__import__('secrets').token_hex()",
    "__import__('secrets').choice(range(10**9))",
    "__import__('uuid').uuid4()",
    "__import__('uuid').uuid1()",
    "tf.random.Generator.from_non_deterministic_state().normal([2]).numpy().tolist()",
    "keras.random.normal([2], seed=keras.random.SeedGenerator()).numpy().tolist()",
    "tf.random.normal([2]).numpy().tolist()",
    "[int(i) for i in tf.data.Dataset.range(50).shuffle(50)]",
    "[int(i) for i in tf.data.Dataset.random().take(3)]",
]


@pytest.mark.parametrize("source", DRAWN)
def test_what_the_script_draws_without_a_seed_is_the_same_on_every_rank_and_not_in_every_run(ranks, source):
    first, second = ranks(f"seen = {source}")
    assert first == second
    assert ranks(f"seen = {source}", seed=4)[0] != first


def test_a_line_draws_other_numbers_each_time():
    assert len({Streams(1).bits(64)}) == 1
    streams = Streams(1)
    assert len({streams.bits(64) for _ in range(5)}) == 5


CLOCKS = [
    *(f"time.{name}{ns}()" for name in ("time", "perf_counter", "monotonic", "process_time") for ns in ("", "_ns")),
    "time.localtime()",
    "time.ctime()",
    "time.strftime('%H:%M:%S')",
    "datetime.datetime.now()",
    "datetime.datetime.utcnow()",
    "datetime.datetime.today()",
    "datetime.datetime.now(datetime.timezone.utc)",
    "datetime.date.today()",
]


@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow")
@pytest.mark.parametrize("source", CLOCKS)
def test_a_clock_that_the_script_reads_is_rank_0s(ranks, source, monkeypatch):
    first, second = ranks(f"import datetime, time\nseen = [{source}, type({source})]")
    assert first == second
    assert type(first[0]) is first[1]


READ = """
import sys
seen = [sys.stdin.readline(), input(), next(sys.stdin), sys.stdin.read(2), sys.stdin.readlines(), sys.stdin.read()]
try:
    input()
except EOFError:
    seen.append("end")
"""


def test_standard_input_is_rank_0s(ranks, monkeypatch):
    given = io.StringIO("1\n2\n3\n4\n5\n6")
    monkeypatch.setattr("sys.stdin", given)
    first, second = ranks(READ)
    assert first == second == ["1\n", "2", "3\n", "4\n", ["5\n", "6"], "", "end"]


TYPES = """
from datetime import date, datetime, timedelta
class Own(datetime):
    pass
then = datetime(2020, 1, 2, 3) + timedelta(days=1)
seen = [
    isinstance(then, datetime), isinstance(then, date), isinstance(date(2020, 1, 2), datetime),
    issubclass(Own, datetime), type(then), type(Own(2020, 1, 1)) is Own, isinstance(then, Own),
    datetime.fromisoformat("2020-01-02") == datetime(2020, 1, 2),
    abs(datetime.now() - REAL.now()) < timedelta(hours=1), isinstance(REAL.now(), datetime),
    __import__("pickle").loads(__import__("pickle").dumps(datetime)) is REAL,
]
""".replace("REAL", "__import__('sys').modules['datetime'].datetime")


def test_the_scripts_datetime_makes_pythons_own_objects(ranks):
    assert ranks(TYPES)[0] == [True, True, False, True, datetime.datetime, True, False, *[True] * 4]


def test_libraries_and_children_have_their_own(state):
    with agreed(Group(1, []), 1):
        names = {os.path.basename(tempfile.mktemp()) for _ in range(2)}  # made of Python's random numbers
    assert len(names) == 2
    streams = Streams(1)
    streams._process += 1
    assert streams.bytes(4) is None


THREAD = """
import threading, uuid
seen = []
def draw():
    seen.append(np.random.default_rng().random())
for _ in range(2):
    thread = threading.Thread(target=draw)
    thread.start()
    thread.join()
"""


def test_a_thread_of_the_script_draws_by_its_own_line(ranks):
    (first, again), second = ranks(THREAD)
    assert [first, again] == second and first != again


UNORDERED = """
def later(i):
    return i
options = tf.data.Options()
options.deterministic = False
numbers = tf.data.Dataset.range(64)
datasets = [
    numbers.map(later, num_parallel_calls=4, deterministic=False),
    numbers.interleave(tf.data.Dataset.from_tensors, cycle_length=4, num_parallel_calls=4, deterministic=False),
    numbers.batch(2, num_parallel_calls=4, deterministic=False).unbatch(),
    numbers.map(later, num_parallel_calls=tf.data.AUTOTUNE).with_options(options),
]
def flags(dataset):
    while dataset is not None:
        yield dataset
        dataset = getattr(dataset, "_input_dataset", None)
from google.protobuf import text_format
graphs = [tf.compat.v1.GraphDef.FromString(d._as_serialized_graph().numpy()) for d in datasets]
seen = [n.attr["deterministic"].s for g in graphs for n in g.node if "deterministic" in n.attr]
"""


def test_data_come_in_one_order_whatever_the_script_allows(ranks):
    assert ranks(UNORDERED)[0] == [b"true"] * 4
