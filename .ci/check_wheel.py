"""Builds the sdist and the wheel as a user does, installs the wheel into a fresh environment and runs its commands.

Called by `make wheel`. The dependencies are those of the calling environment: only the wheel is installed. Its own
modules come from the wheel, because a directory on PYTHONPATH does not apply the editable install's .pth file.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

from fdt import PACKAGES

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".cache" / "wheel"
COMMANDS = (["hfdt", "--version"], ["nfdt", "--version"], ["hfdt", "run", "--help"], ["nfdt", "simulate", "--help"])
QUIET = {"capture_output": True, "text": True}


def main() -> int:
    shutil.rmtree(WORK, ignore_errors=True)
    _call([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(WORK / "dist"), str(ROOT)])
    (wheel,) = (WORK / "dist").glob("*.whl")
    missing = sorted(_sources() - set(zipfile.ZipFile(wheel).namelist()))
    if missing:
        print(f"make wheel: the wheel lacks files of the packages: {', '.join(missing)}", file=sys.stderr)
        return 1
    for line in _run_commands(wheel):
        print(line)
    print(f"wheel: {wheel.name}, {wheel.stat().st_size // 1024} kB, has all {len(_sources())} files; commands start")
    return 0


def _sources() -> set[str]:
    """All files of the packages: those that git knows, or would add; without git, all but caches."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *PACKAGES]
    try:
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):  # no git, no repository, or one that another user owns
        found = [path for package in PACKAGES for path in (ROOT / package).rglob("*")]
        names = [str(path.relative_to(ROOT)) for path in found if "__pycache__" not in path.parts]
    return {name for name in names if (ROOT / name).is_file()}


def _run_commands(wheel: Path) -> list[str]:
    """The first line that each of COMMANDS prints, run where only the wheel has this project's modules."""
    venv.create(WORK / "venv", with_pip=True)
    scripts = WORK / "venv" / "bin"
    _call([str(scripts / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)])
    env = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    where = "import hfdt, pathlib; print(pathlib.Path(hfdt.__file__).is_relative_to(pathlib.Path.cwd()))"
    if _call([str(scripts / "python"), "-c", where], cwd=WORK, env=env).strip() != "True":
        raise SystemExit("make wheel: the commands do not run from the wheel")
    return [_call([str(scripts / name), *words], cwd=WORK, env=env).splitlines()[0] for name, *words in COMMANDS]


def _call(argv: list[str], **options: object) -> str:
    done = subprocess.run(argv, **QUIET, **options)  # type: ignore[call-overload]
    if done.returncode:
        said = done.stdout + done.stderr
        raise SystemExit(f"make wheel: {' '.join(argv)} ended with exit code {done.returncode}\n{said}")
    return str(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
