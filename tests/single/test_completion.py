"""Completion in real shells: a line is typed, then the tab key, and the shell's line is read back."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time

import pytest

READY = "READY>"
START = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], f"PS1='{READY}'; . <(hfdt completion bash)"),
    "zsh": (
        ["zsh", "-f", "-i"],
        f"bindkey -e; PS1='{READY}'; autoload -U compinit; compinit -D -u; . <(hfdt completion zsh)",
    ),
}
LINES = [
    ("hfdt run --al\t", "hfdt run --al"),  # --algorithm and --allow-...: the shell waits
    ("hfdt run --alg\t", "hfdt run --algorithm"),
    ("hfdt run --launcher m\t", "hfdt run --launcher mpi"),
    ("hfdt run --launcher=m\t", "hfdt run --launcher=mpi"),
    ("hfdt run tra\t", "hfdt run train.py"),
    ("hfdt run train.py --ru\t", "hfdt run train.py --ru"),
    ("hfdt run train.py --launcher m\t", "hfdt run train.py --launcher m"),
    ("hfdt run train.py --data dat\t", "hfdt run train.py --data data.csv"),
    ("hfdt run --profile cl\t", "hfdt run --profile cluster"),
    ("hfdt run -m pack\t", "hfdt run -m package"),
    ("hfdt comp\t", "hfdt completion"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("completion")
    for name in ("train.py", "data.csv", "package/__init__.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    (folder / "hfdt.toml").write_text("[profiles.cluster.run]\nnp = 8\n")
    command = folder / "bin" / "hfdt"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m hfdt "$@"\n')
    command.chmod(0o700)
    return folder


def environment(folder):
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "TERM": "dumb", "HOME": str(folder), "INPUTRC": "/dev/null"}


class Terminal:
    """A shell on a pseudo-terminal."""

    def __init__(self, argv, folder):
        ours, theirs = pty.openpty()
        self._file = ours
        self._shell = subprocess.Popen(
            argv,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=folder,
            env=environment(folder),
            start_new_session=True,
        )
        os.close(theirs)

    def type(self, text, until):
        """Type `text`; return the match of the pattern `until` in what the terminal shows."""
        os.write(self._file, text.encode())
        shown, deadline = "", time.monotonic() + 60
        while not (found := re.search(until, shown)):
            assert time.monotonic() < deadline, shown
            if select.select([self._file], [], [], 1)[0]:
                shown += os.read(self._file, 4096).decode(errors="replace")
        return found

    def close(self):
        self._shell.kill()
        self._shell.wait()
        os.close(self._file)


@pytest.mark.parametrize("shell", START)
def test_a_line_is_completed(shell, folder):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    argv, start = START[shell]
    terminal = Terminal(argv, folder)
    try:
        terminal.type(f"{start}; echo started_$((40+2))\n", r"started_42\s")
        # Ctrl-A goes to the start of the line: the shell prints the line instead of running it.
        seen = [terminal.type(f"{typed}\x01echo @ \n", r"\n@ (.*?) *\r")[1] for typed, _ in LINES]
        assert seen == [line for _, line in LINES]
    finally:
        terminal.close()


def test_fish_completes(folder):
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    asked = "; ".join(f"complete -C '{typed.strip()}'; echo -" for typed, _ in LINES)
    argv = ["fish", "--no-config", "-c", f"hfdt completion fish | source; {asked}"]
    ended = subprocess.run(argv, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=120)
    offered = [[line.partition("\t")[0] for line in part.splitlines()] for part in ended.stdout.split("-\n")[:-1]]
    assert ended.stderr == ""
    assert offered[0] == ["--algorithm", "--allow-inexact", "--allow-replicated"]
    for words, (typed, line) in zip(offered[1:], LINES[1:], strict=True):
        assert words == ([line.split()[-1]] if typed.strip() != line else [])
