"""`make demo`: the parsing of a script's output, and the end after a failing command."""

import importlib.util
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "demo.py"
spec = importlib.util.spec_from_file_location("demo", PATH)
demo = importlib.util.module_from_spec(spec)
sys.modules["demo"] = demo  # dataclasses look their module up
spec.loader.exec_module(demo)

SAID = "Epoch 1/1\nthroughput: 4925 samples/s\ntest accuracy: 0.9806\n"


def test_reads_the_scripts_two_numbers():
    assert demo.read(SAID, 12.5) == demo.Result(0.9806, 4925.0, 12.5)


def test_a_script_that_prints_neither_is_an_error():
    with pytest.raises(ValueError, match=r"throughput.*Received: 'Epoch 1/1'"):
        demo.read("Epoch 1/1", 1.0)


def test_relay_shows_and_returns_what_a_command_prints(capfd):
    code, said = demo.relay([sys.executable, "-c", "print('hello'); raise SystemExit(3)"])
    assert (code, said) == (3, "hello\n")
    assert capfd.readouterr().out == "hello\n"


def test_the_first_failing_way_ends_the_demo_with_its_exit_code(monkeypatch, capsys):
    ways = {"alone": ["python"], "HFDT, 2 workers": ["hfdt"], "NFDT, 2 workers": ["nfdt"]}
    ran = []

    def relay(argv):
        ran.extend(argv)
        return (0, SAID) if argv == ["python"] else (7, "")

    monkeypatch.setattr(demo, "WAYS", ways)
    monkeypatch.setattr(demo, "relay", relay)
    monkeypatch.setattr(demo.os, "environ", {})
    monkeypatch.setattr(demo.os, "chdir", lambda path: None)
    assert demo.main() == 7
    assert ran == ["python", "hfdt"]
    assert "exit code 7" in capsys.readouterr().out
