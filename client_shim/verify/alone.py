"""Process of a recorded run alone: `python script.py` with its steps recorded."""

import os
import sys

from client_shim.script import run_script
from client_shim.verify.plan import VARIABLE, RecordingPlan
from client_shim.verify.recording import recorded
from fdt.environment import quiet_import
from fdt.errors import UserError


def main() -> int:
    """Run the script of this process's plan and return its exit code."""
    if sys.path and sys.path[-1] in ("", os.getcwd()):
        del sys.path[-1]  # added by `python -m` (fdt/__init__.py)
    plan = RecordingPlan.take()
    if plan is None:
        raise SystemExit(f"`verify` starts {__name__} with {VARIABLE} set; it cannot be run by hand")
    os.environ.update(plan.environment())
    try:
        with quiet_import(), recorded():
            return run_script(plan.script, plan.script_args)
    except UserError as error:
        print(f"{plan.script}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
