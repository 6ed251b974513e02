"""The division of a command line's arguments between the command and the script, as one table."""

import pytest

from fdt.cli import split

VALUED, FLAGS = {"-np", "--num-proc", "--seed", "--log-dir"}, {"--quiet", "--async", "--sync", "--help"}

TABLE = [
    ("-mp.q a -np2", "-np 2", "-m p.q", "a", ""),
    ("-min-np 2 t.py", "-min-np", "2", "t.py", ""),  # the parser refuses it
    ("-m p.q a -np 3 b", "-np 3", "-m p.q", "a b", ""),
    ("-np 2 -m p.q -- -m x", "-np 2", "-m p.q", "-m x", ""),
    ("t.py -m x", "", "t.py", "-m x", ""),
    ("-m", "-m", None, "", ""),
    # argv, ours, script, words, overlooked
    ("-np 2 t.py", "-np 2", "t.py", "", ""),
    ("t.py -np 2", "-np 2", "t.py", "", ""),
    ("t.py -np2", "-np 2", "t.py", "", ""),
    ("-np2 t.py", "-np 2", "t.py", "", ""),
    ("t.py -np=2", "-np=2", "t.py", "", ""),
    ("-np 2 t.py a -np 3 b", "-np 2 -np 3", "t.py", "a b", ""),
    ("t.py --async --epochs 3 --sync", "--async --sync", "t.py", "--epochs 3", ""),
    ("--seed 3 --quiet t.py x", "--seed 3 --quiet", "t.py", "x", ""),
    ("--seed=3 t.py x", "--seed=3", "t.py", "x", ""),
    ("--log-dir t.py u.py", "--log-dir t.py", "u.py", "", ""),
    ("t.py --seed 3", "", "t.py", "--seed 3", "--seed"),
    ("t.py --seed=3 --quiet --seed 4", "", "t.py", "--seed=3 --quiet --seed 4", "--seed --quiet"),
    ("t.py --num-proc 3", "", "t.py", "--num-proc 3", "--num-proc"),
    ("t.py -- -np 3 --async", "", "t.py", "-np 3 --async", ""),
    ("t.py -np 2 -- -np 3 -- --seed", "-np 2", "t.py", "-np 3 -- --seed", ""),
    ("-np 2 -- t.py -np 3", "-np 2", "t.py", "-np 3", ""),
    ("-np 2 --", "-np 2", None, "", ""),
    ("--sed 3 t.py", "--sed", "3", "t.py", ""),  # the parser refuses --sed
    ("t.py -n 3 -npoints 4 -np", "-np", "t.py", "-n 3 -npoints 4", ""),
    ("t.py --asynchronous -", "", "t.py", "--asynchronous -", ""),
    ("- a", "", "-", "a", ""),
    ("-np", "-np", None, "", ""),
    ("", "", None, "", ""),
]


@pytest.mark.parametrize(("argv", "ours", "script", "script_args", "overlooked"), TABLE)
def test_split(argv, ours, script, script_args, overlooked):
    parts = split(argv.split(), VALUED, FLAGS)
    assert (parts.ours, parts.script) == (ours.split(), script)
    assert (parts.script_args, parts.overlooked) == (script_args.split(), overlooked.split())


def test_words_with_spaces_and_empty_words_stay_as_they_are():
    assert split(["t.py", "a b", "", "--x="], VALUED, FLAGS).script_args == ["a b", "", "--x="]
