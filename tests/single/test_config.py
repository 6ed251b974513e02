"""hfdt.toml, [tool.hfdt], HFDT_* variables and profiles: which of them sets an option, and what a wrong one says."""

import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from client_shim import command as fits
from frontends.config import COMMANDS
from hfdt.cli import main as hfdt
from nfdt.cli import main as nfdt

FILE = """\
[run]
np = 3
log-dir = "logs"
compress = "fp16"
"shard-optimizer" = true

[nfdt.run]
compress = "int8"
sync = true

[profiles.cluster.run]
np = 8
[profiles.cluster.nfdt]
run.np = 16
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("print('ran')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(command, *argv, **env):
    return CliRunner().invoke(command, list(argv), env=env)


def shown(command, *argv, **env):
    """Return {option: (value, source)} of those that are not defaults, as `config` prints them."""
    ended = call(command, "config", "--json", *argv, **env)
    assert (ended.exit_code, ended.stderr) == (0, "")
    found = json.loads(ended.stdout)["options"]
    return {name: (each["value"], each["source"]) for name, each in found.items() if each["source"] != "default"}


def test_a_value_and_its_source(folder):
    (folder / "hfdt.toml").write_text(FILE)
    logs = str(folder / "logs")
    assert shown(hfdt) == {
        "np": ("3", "hfdt.toml:2 [run]"),
        "log-dir": (logs, "hfdt.toml:3 [run]"),
        "compress": ("fp16", "hfdt.toml:4 [run]"),
        "shard-optimizer": ("on", "hfdt.toml:5 [run]"),
    }
    assert shown(hfdt, "run", "-np", "5", "--quiet", HFDT_NP="4", HFDT_COMPRESS="bf16", HFDT_QUIET="0") == {
        "np": (5, "command line"),
        "quiet": (True, "command line"),
        "log-dir": (logs, "hfdt.toml:3 [run]"),
        "compress": ("bf16", "HFDT_COMPRESS"),
        "shard-optimizer": ("on", "hfdt.toml:5 [run]"),
    }
    assert shown(hfdt, HFDT_PROFILE="cluster")["np"] == ("8", "hfdt.toml:12 [profiles.cluster.run]")
    assert shown(hfdt, "run", "--no-config", HFDT_NP="4") == {}
    assert shown(hfdt, "serve") == {}


@pytest.mark.parametrize("group", [hfdt, nfdt])
def test_the_commands_that_a_configuration_sets_have_its_options_and_are_listed_by_config(group):
    commands = {name: group.get_command(click.Context(group), name) for name in group.list_commands(None)}
    configured = {name for name, each in commands.items() if any("--no-config" in param.opts for param in each.params)}
    assert configured == set(COMMANDS) & set(commands)
    assert f"COMMAND is {', '.join(COMMANDS[:-1])} or {COMMANDS[-1]}." in commands["config"].help


def test_an_engines_own_table_is_over_the_shared_one(folder):
    (folder / "hfdt.toml").write_text(FILE.replace('"shard-optimizer" = true\n', ""))
    assert shown(nfdt)["compress"] == ("int8", "hfdt.toml:7 [nfdt.run]")
    assert shown(nfdt)["sync"] == (True, "hfdt.toml:8 [nfdt.run]")
    assert shown(nfdt, "--profile", "cluster")["np"] == ("16", "hfdt.toml:13 [profiles.cluster.nfdt.run]")


def test_the_file_is_found_in_parents_up_to_the_root_of_the_repository(folder, monkeypatch):
    (folder / "pyproject.toml").write_text("[project]\nname = 'x'\n[tool.hfdt.run]\nnum_proc = 7\n")
    inner = folder / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert shown(hfdt) == {}  # no repository: a parent may be another user's
    (folder / ".git").mkdir()
    assert shown(hfdt) == {"np": ("7", "../../pyproject.toml:4 [tool.hfdt.run]")}
    (folder / "a" / ".git").mkdir()
    assert shown(hfdt) == {}


@pytest.fixture
def requests(monkeypatch):
    found = []

    def run(request, words, settings, engine, early=False):
        found.append((request, words, settings))
        return 0

    monkeypatch.setattr(fits, "run", run)
    return found


def test_a_run_has_the_values_and_records_them_for_its_resumption(folder, requests):
    (folder / "hfdt.toml").write_text("[run]\nnp = 3\nrestarts = 1\nquiet = true\n")
    ended = call(hfdt, "run", "--restarts", "2", "train.py", "-np", "4", HFDT_LOG_DIR="here", HFDT_SEED="5")
    assert ended.exit_code == 0, ended.output
    ((request, _, settings),) = requests
    assert (request.workers, str(request.log_dir), request.quiet) == (4, "here", True)
    assert (settings.seed, settings.options["restarts"]) == (5, "2")
    assert request.typed == ["--quiet", "--log-dir=here", "--seed=5", "--restarts", "2", "-np", "4"]


def test_a_verification_and_a_resumed_run_read_nothing_again(folder, requests, monkeypatch):
    from client_shim.verify import command
    from fdt.cli import Split
    from fdt.cli import program as programs

    asked = []
    monkeypatch.setattr(command, "verify", lambda request, **_: asked.append(request.options) or 0)
    (folder / "hfdt.toml").write_text("[verify]\nbatch-norm = 'local'\n[run]\nnp = 3\nlog-dir='x'\n")
    assert call(hfdt, "verify", "--no-config", "--bucket-mb", "8", "train.py").exit_code == 0
    assert call(hfdt, "verify", "--bucket-mb", "8", "train.py").exit_code == 0
    assert asked == [["--bucket-mb", "8"], ["--batch-norm=local", "--bucket-mb", "8"]]

    before = Split(["--resume", "d"], "train.py", [])
    monkeypatch.setattr(programs, "resumed", lambda parts, engine: before)
    assert call(hfdt, "run", "--resume", "d").exit_code == 0
    assert requests[0][0].workers is None


WRONG = [
    ("np = 3", "hfdt.toml:1: an option stands in the table of its command, such as [run]. Received: np"),
    ("[rnu]", "hfdt.toml:1: this file has no table 'rnu'; did you mean run?"),
    ("[run]\nlog_dri = 'x'", "hfdt.toml:2: [run] has no option 'log_dri'; did you mean log-dir?"),
    (
        "[run]\nps = 2",
        "hfdt.toml:2: [run] has no option 'ps'; `hfdt run --help` lists the options; an option of one engine alone "
        "stands in [hfdt.run] or [nfdt.run]",
    ),
    ("[run]\nnp = 'many'", "hfdt.toml:2 [run]: np: -np must be a number of workers, 1 or more. Received: many"),
    ("[run]\nnp = true", "hfdt.toml:2: np must be a text or a number. Received: true"),
    ("[run]\nquiet = 1", "hfdt.toml:2: quiet must be true or false. Received: 1"),
    ("[run]\nhosts = ['a']", "hfdt.toml:2: hosts must be a text or a number. Received: ['a']"),
    ("[run]\nbatch = 'all'", "hfdt.toml:2 [run]: batch: 'all' is not one of 'global', 'per-worker'."),
    ("[run]\nnp = 2\nnum-proc = 3", "hfdt.toml:3: [run] has np and num-proc, which are one option"),
    ("run = 3", "hfdt.toml:1: run must be a table, [run]. Received: 3"),
    ("[run]\nresume = 'x'", "[run] has no option 'resume'"),
    ("[profiles.a]\nnp = 3", "an option stands in the table of its command, such as [profiles.a.run]. Received: np"),
    ("[profiles.a.rum]", "hfdt.toml:1: [profiles.a] has no table 'rum'; did you mean run?"),
    ("[run", "hfdt.toml is not valid TOML: Expected ']'"),
    ("[run]\nlr-scale = 'sqrt'", "Received: --lr-scale sqrt; --lr-scale is set by hfdt.toml:2 [run]"),
    ("[run]\ncompress = 'zip'", "Received: zip; --compress is set by hfdt.toml:2 [run]"),
]


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_a_wrong_file_is_one_line_with_file_and_key(text, said, folder):
    (folder / "hfdt.toml").write_text(text)
    ended = call(hfdt, "run", "train.py")
    (line,) = ended.stderr.splitlines()
    assert (ended.exit_code, line[:13]) == (2, "hfdt: error: ")
    assert said in line


def test_other_wrong_configurations(folder):
    def error(*argv, **env):
        ended = call(hfdt, *argv, **env)
        assert ended.exit_code == 2
        return ended.stderr.removeprefix("hfdt: error: ").strip()

    run = ("run", "train.py")
    assert error(*run, HFDT_NP="many") == "HFDT_NP: -np must be a number of workers, 1 or more. Received: many"
    assert error(*run, HFDT_LOGDIR="x").startswith("the variable HFDT_LOGDIR sets no option; did you mean HFDT_LOG_DIR")
    assert error(*run, HFDT_RESUME="x").startswith(
        "--resume is given on the command line alone. Received: the variable"
    )
    assert error("run", "--profile", "a", "train.py").startswith("there is no configuration file with the profile 'a'")
    assert error("run", "--no-config", "--profile", "a", "train.py").startswith("--profile names tables of the file")
    assert error("config", "certs").endswith("the options of run, verify, inspect, serve, queue. Received: certs")
    (folder / "hfdt.toml").write_bytes(b"[run]\nnp = '\xff'")
    assert error(*run).startswith("hfdt.toml is not valid TOML: 'utf-8' codec can't decode")
    (folder / "hfdt.toml").write_text(FILE)
    assert error("run", "--profile", "clustr", "train.py").endswith("[profiles.clustr]; did you mean cluster?")
    (folder / "pyproject.toml").write_text("[tool.hfdt.run]\n")
    assert error(*run).endswith(f"are both in {folder}: keep one of them")


def test_as_a_user_runs_it(folder):
    (folder / "hfdt.toml").write_text("[run]\nlog-dir = 'logs'\n")
    (folder / "pyproject.toml").write_text("[project.scripts]\nhfdt = 'not ours'\n")
    subprocess.run([sys.executable, "-m", "hfdt", "run", "train.py"], check=True, capture_output=True, timeout=60)
    assert (folder / "logs" / "records.jsonl").exists()
    shown = subprocess.run([sys.executable, "-m", "nfdt", "config"], check=True, capture_output=True, timeout=60)
    assert b"\nlog-dir           " in shown.stdout and b"/logs  " in shown.stdout
