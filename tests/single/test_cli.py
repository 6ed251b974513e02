"""The commands' output, exit codes and options, without training."""

import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from fdt.cli.options import job_options
from fdt.cli.program import ScriptCommand, option, program
from fdt.errors import UserError
from hfdt.cli import main as hfdt
from nfdt.cli import main as nfdt


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("print('ran')\n")
    return str(path)


def call(command, *argv):
    return CliRunner().invoke(command, list(argv))


USAGE = [
    (hfdt, "run", "`hfdt run` needs a script: hfdt run [OPTIONS] script.py"),
    (hfdt, "run nowhere.py", "no such script. Received: nowhere.py"),
    (hfdt, "run .", "the script must be a Python file. Received: the directory ."),
    (hfdt, "run -np 0 SCRIPT", "-np must be a number of workers, 1 or more. Received: 0"),
    (hfdt, "run SCRIPT -np two", "-np must be a number of workers, 1 or more. Received: two"),
    (hfdt, "run SCRIPT -np", "Option '-np' requires an argument."),
    (hfdt, "run --lgo-dir x SCRIPT", "no such option. Received: --lgo-dir; did you mean --log-dir?"),
    (hfdt, "run --seed -1 SCRIPT", "--seed must be a seed, 0 or more. Received: -1"),
    (hfdt, "run SCRIPT --async", "hfdt trains synchronously; use `nfdt run`. Received: --async"),
    (hfdt, "run --lr-scale sqrt SCRIPT", "--lr-scale needs --batch per-worker. Received: --lr-scale sqrt"),
    (hfdt, "run --rule nope SCRIPT", "--algorithm must be one of admm, allreduce"),
    (hfdt, "run --local-steps 0 SCRIPT", "--local-steps must be a number of batches, 1 or more. Received: 0"),
    (
        hfdt,
        "run --dane-mu 1 SCRIPT",
        "--dane-mu needs --algorithm dane. Received: --dane-mu with allreduce",
    ),
    (hfdt, "run --algorithm dane --dane-mu -1 SCRIPT", "dane: mu must be 0 or more, or not given. Received: mu=-1.0"),
    (
        hfdt,
        "run --algorithm dane(nu=1) SCRIPT",
        "dane has no such parameter; its parameters: eta, mu, local_epochs, solver.",
    ),
    (hfdt, "run --algorithm admm --admm-rho 0 SCRIPT", "admm: rho must be above 0. Received: rho=0.0"),
    (
        hfdt,
        "run --algorithm coded --batch per-worker SCRIPT",
        "--batch per-worker needs --algorithm allreduce or local_sgd or dane",
    ),
    (
        hfdt,
        "run --algorithm dane --on-nan skip SCRIPT",
        "--on-nan needs --algorithm allreduce. Received: --on-nan with",
    ),
    (hfdt, "run --algorithm local_sgd --bucket-mb 8 SCRIPT", "--bucket-mb needs --algorithm allreduce."),
    (hfdt, "run --algorithm coded --shard-optimizer SCRIPT", "--shard-optimizer needs --algorithm allreduce."),
    (hfdt, "run --shard-optimizer --fp16-allreduce --on-nan stop SCRIPT", "--on-nan needs whole gradients. Received:"),
    (hfdt, "run --algorithm local_sgd --fp16-allreduce SCRIPT", "--compress needs --algorithm allreduce."),
    (hfdt, "run --shard-optimizer --compress bf16 SCRIPT", "--shard-optimizer can have --compress fp16 alone."),
    (hfdt, "run --shard-optimizer=never SCRIPT", "'never' is not one of 'on', 'auto'."),
    (hfdt, "run --shard-optimizer=auto --algorithm dane SCRIPT", "--shard-optimizer needs --algorithm allreduce."),
    (hfdt, "run --bucket-mb most SCRIPT", "'most' is not a valid float range."),
    (hfdt, "run --compress auto --verify 3 SCRIPT", "a comparison needs equal numbers, which --compress changes."),
    (hfdt, "run --capture replica --compress auto SCRIPT", "can have --compress fp16 or bf16. Received: auto"),
    (hfdt, "run --compress zip SCRIPT", "--compress must be one of bf16, fp16, powersgd, or a .py file. Received: zip"),
    (
        hfdt,
        "run --compress bf16 --fp16-allreduce SCRIPT",
        "--fp16-allreduce means --compress fp16. Received: --compress",
    ),
    (hfdt, "run --compress bf16 --verify 3 SCRIPT", "a comparison needs equal numbers, which --compress changes."),
    (hfdt, "verify --partition random-sampling SCRIPT", "a comparison needs equal batches. Received: --partition"),
    (hfdt, "verify --fp16-allreduce SCRIPT", "a comparison needs equal numbers, which --compress changes."),
    (hfdt, "run --capture replica --compress powersgd SCRIPT", "can have --compress fp16 or bf16. Received: powersgd"),
    (hfdt, "run --capture replica --bucket-mb auto SCRIPT", "needs --bucket-mb in megabytes. Received: auto"),
    (nfdt, "run --compress topk(fraction=2) SCRIPT", "topk: fraction must be above 0 and at most 0.5. Received: 2.0"),
    (
        nfdt,
        "run --compress int8+topk SCRIPT",
        "--compress: the second compressor must be one for pulls. Received: int8+",
    ),
    (nfdt, "run --capture replica --compress int8 SCRIPT", "--compress is for scripts that train by fit alone."),
    (hfdt, "run --server 10.0.0.1:5 SCRIPT", "an address other than loopback needs TLS: give --tls-cert,"),
    (hfdt, "run --multicast ip SCRIPT", "--multicast needs --algorithm coded."),
    (hfdt, "run --algorithm coded --multicast ip: SCRIPT", "must be mpi, ip or ip:INTERFACE. Received: ip:"),
    (hfdt, "run --server here SCRIPT", "an address must be HOST:PORT or unix:PATH. Received: 'here'"),
    (hfdt, "run --server 127.0.0.1:5 SCRIPT", "--server needs a token: give --token-file FILE, or set FDT_TOKEN"),
    (hfdt, "run --server 127.0.0.1:5 --comm mpi SCRIPT", "--comm must be given to `hfdt serve`"),
    (hfdt, "serve --max-np 3", "--max-np is not for a pool, which has the slots that it starts with: `hfdt run` takes"),
    (nfdt, "serve --host-discovery-script x", "it starts with: `nfdt serve --join-at` accepts workers"),
    (hfdt, "serve --host 0.0.0.0", "an address other than loopback needs TLS: give --tls-cert,"),
    (hfdt, "train.py -np 2", "a script needs the command run: hfdt run train.py -np 2"),
    (hfdt, "serv", "no such command. Received: 'serv'; did you mean serve?"),
    (
        hfdt,
        "run -n 2 SCRIPT",
        "no such option. Received: -n; did you mean -np? the script's own arguments stand after the script; "
        "`hfdt run --help` lists the options",
    ),
    (hfdt, "run --epochs 5 SCRIPT", "Received: --epochs; the script's own arguments stand after the script; `hfdt"),
    (hfdt, "serve --prot 1", "Received: --prot; did you mean --port? `hfdt serve --help` lists the options"),
    (nfdt, "simulate SCRIPT --epochs 3", "Received: --epochs; the script's own arguments stand after --; `nfdt"),
    (nfdt, "run --algoritm ssp SCRIPT", "Received: --algoritm; did you mean --algorithm? the"),
    (nfdt, "run SCRIPT --sync --async", "training is either synchronous or asynchronous."),
    (
        nfdt,
        "run --algorithm asgd SCRIPT --sync",
        "--sync means --algorithm ssgd. Received: --algorithm asgd too; give one of them",
    ),
    (nfdt, "run --algorithm nope SCRIPT", "nope"),
    (nfdt, "simulate --compare asgd,nope SCRIPT", "must be one of asgd, dana_dc,"),
    (nfdt, "simulate --data /proc/none SCRIPT", "--data cannot be written: [Errno"),
    (nfdt, "run --ps 0 SCRIPT", "--ps must be a number of servers, 1 or more. Received: 0"),
]


@pytest.mark.parametrize(("command", "argv", "said"), USAGE)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(command, argv, said, script, monkeypatch):
    monkeypatch.delenv("FDT_TOKEN", raising=False)
    ended = call(command, *(script if word == "SCRIPT" else word for word in argv.split()))
    assert ended.exit_code == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"{command.name}: error: ")
    assert said in line


@pytest.mark.parametrize("command", [hfdt, nfdt])
def test_help_has_groups_examples_and_the_default_number_of_workers(command):
    ended = call(command, "run", "--help")
    assert ended.exit_code == 0
    for words in ("[OPTIONS] script.py", "Output:", "Examples:", "[default: 2; ", "-- -np 3", "--algorithm NAME"):
        assert words in " ".join(ended.stdout.split())
    assert "--rule" not in ended.stdout, "an old spelling is accepted and not shown"


def test_version():
    assert call(nfdt, "--version").stdout == "nfdt 0.1.0\n"


def probe(name="hfdt", fails=None):
    """A program whose `run` prints what it is given."""
    main = program(name, "", {})

    @main.command("run", cls=ScriptCommand)
    @option("Some", "-np", "workers", type=int)
    @option("Some", "--quiet", is_flag=True)
    def run(script, script_args, workers, quiet):
        if fails is not None:
            raise fails
        click.echo(f"{os.path.basename(script)} {script_args} {workers} {quiet}")
        return 3

    return main


def test_the_scripts_exit_code_is_the_commands(script):
    ended = call(probe(), "run", "--quiet", script, "-np", "4", "--lr", "-1", "--", "-np", "5")
    assert ended.exit_code == 3
    assert ended.stdout == "train.py ['--lr', '-1', '-np', '5'] 4 True\n"
    assert ended.stderr == ""


def test_a_word_of_ours_behind_the_script_is_the_scripts_and_one_line_says_so(script):
    ended = call(probe(), "run", script, "--quiet", "--lr", "1")
    assert ended.stdout == "train.py ['--quiet', '--lr', '1'] None False\n"
    assert ended.stderr == (
        f"hfdt: --quiet after the script: an argument of the script; for this command: hfdt run --quiet ... {script}\n"
    )


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UserError("it must be so.\nReceived: not"), 1, "hfdt: error: it must be so. Received: not\n"),
        (KeyboardInterrupt(), 130, "hfdt: interrupted\n"),
        (SystemExit(7), 7, ""),
    ],
)
def test_what_a_run_may_raise(script, error, code, said):
    ended = call(probe(fails=error), "run", script)
    assert (ended.exit_code, ended.stderr.lstrip("\n")) == (code, said)


def test_a_bug_of_ours_is_not_hidden(script):
    assert isinstance(call(probe(fails=ZeroDivisionError()), "run", script).exception, ZeroDivisionError)


def test_options_of_a_job_are_strings_and_those_not_set_are_left_out():
    given = {"rule": "allreduce", "allow_replicated": True, "allow_inexact": False, "warmup_epochs": 0.5, "batch": None}
    assert job_options(given, tuple(given)) == {"rule": "allreduce", "allow_replicated": "1", "warmup_epochs": "0.5"}


def test_the_command_imports_nothing_that_is_slow():
    code = "import sys, hfdt.cli, nfdt.cli; sys.exit(any(m in sys.modules for m in ('tensorflow', 'grpc', 'numpy')))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


COMPLETED = [
    (hfdt, "ru", ["plain,run"]),
    (hfdt, "run --ru", ["plain,--run-dir"]),
    (hfdt, "run SCRIPT --ru", ["file,--ru"]),
    (hfdt, "run nowhere.py -np 2 --ru", ["file,--ru"]),
    (hfdt, "run SCRIPT -n", ["plain,-np"]),
    (hfdt, "run SCRIPT --launcher ", ["file,"]),
    (hfdt, "run -m fdt.cl", ["plain,fdt.cli"]),
    (hfdt, "run -m fdt.cli --la", ["file,--la"]),
    (nfdt, "run SCRIPT --", ["plain,--async", "plain,--sync"]),
    (hfdt, "run --launcher ", ["plain,auto", "plain,mpi", "plain,gloo"]),
    (hfdt, "run --launcher=m", ["plain,mpi"]),
    (hfdt, "run --run-dir x --launcher mpi", ["plain,mpi"]),
    (hfdt, "run -np two --resume nowhere --log", ["plain,--log-dir"]),
    (hfdt, "run tra", ["file,tra"]),
    (hfdt, "run SCRIPT da", ["file,da"]),
    (hfdt, "run SCRIPT -- --ru", ["file,--ru"]),
    (hfdt, "verify --st", ["plain,--steps"]),
    (hfdt, "no_such --ru", []),
    (nfdt, "run --algorithm asgd --lo", ["plain,--local-steps", "plain,--log-dir"]),
    (nfdt, "control nowhere.py --seed 1 --cl", ["plain,--cluster"]),
    (nfdt, "simulate --compare asgd SCRIPT --rep", ["plain,--report"]),
]


@pytest.mark.parametrize(("command", "words", "completed"), COMPLETED, ids=[words for _, words, _ in COMPLETED])
def test_a_shell_completes_options_wherever_the_script_stands(command, words, completed, script):
    """The protocol is click's, the shell's side of it bash's."""
    typed = f"{command.name} {words.replace('SCRIPT', script)}"
    place = str(len(typed.split(" ")) - 1)
    asked = {f"_{command.name.upper()}_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": place}
    ended = CliRunner().invoke(command, [], env=asked)
    assert (ended.exit_code, ended.stdout.split(), ended.stderr) == (0, completed, "")


@pytest.mark.parametrize(
    ("command", "argv", "flag"),
    [
        (hfdt, "run --batch per-worker", "--batch"),
        (nfdt, "run --ps 2", "--ps"),
        (nfdt, "run --emulate c.yaml", "--emulate"),
    ],
)
def test_options_of_fit_are_refused_for_loops_of_the_scripts_own(command, argv, flag, tmp_path):
    script = tmp_path / "tape.py"
    script.write_text("optimizer.apply_gradients(zip(gradients, variables))")
    ended = call(command, *argv.split(), str(script))
    assert ended.exit_code == 2
    assert f"{flag} is for scripts that train by fit" in ended.output


@pytest.mark.parametrize("command", [hfdt, nfdt])
def test_named_hosts_are_started_on_before_the_script(command, script, monkeypatch):
    from client_shim import command as fits

    asked = []
    monkeypatch.setattr(fits, "run", lambda *_, early=False: asked.append(early) or 0)
    for words in ([], ["-H", "far1:1,far2:1"]):
        assert call(command, "run", *words, script).exit_code == 0
    assert asked == [False, True]


@pytest.mark.parametrize("command", [hfdt, nfdt])
def test_help_lists_the_exit_codes_that_the_commands_have(command, tmp_path, script):
    shown = [call(command, *words, "--help").stdout for words in ([], ["run"])]
    codes = [[line.split()[0] for line in text.partition("Exit codes:")[2].splitlines()[1:]] for text in shown]
    assert codes == [["0", "1", "2", "75", "130", "128+N"]] * 2

    def code(text, *options):
        (tmp_path / "ends.py").write_text(text)
        return call(command, "run", "-q", *options, str(tmp_path / "ends.py")).exit_code

    ends = "import os, signal; os.kill(os.getpid(), signal.SIG{})"
    assert code("import sys; sys.exit(7)") == 7
    assert code("raise ValueError") == code("1 +") == 1
    assert code(ends.format("INT")) == 130
    assert code(ends.format("TERM")) == 143
    assert code(ends.format("USR1")) == 0, "nothing is saved, and the script goes on"
    assert [code(ends.format(name), "--run-dir", str(tmp_path / name)) for name in ("TERM", "USR1")] == [75, 75]
    assert code("", "--grace-period", "5s") == 2
    assert call(command, "run", "--no-such-option", script).exit_code == 2
