"""An srun of the tests, and the contract that it and a real one keep."""

import subprocess
from collections.abc import Callable, Mapping, Sequence

from fdt.launch.hosts import argv_on, last_line

# It runs the command on this machine, and writes down in the directory {0} what others could see of it.
FAKE = """#!/bin/bash
cd {0}; echo "$@" > words; env > environment
while [ "${{1#--}}" != "$1" ]; do shift; done
export SLURM_LAUNCH_NODE_IPADDR=192.0.2.7
tee in | "$@" | tee out
code=${{PIPESTATUS[1]}}
[ $code = 0 ] || echo "srun: error: node2: task 0: Exited with exit code $code" >&2
exit $code
"""
SAYS = 'cat; echo " $A_VARIABLE ${SLURM_LAUNCH_NODE_IPADDR:+known}"; echo the reason >&2; exit 3'
Run = Callable[[Sequence[str], str, Mapping[str, str]], "subprocess.CompletedProcess[str]"]


def check_srun(run: Run) -> None:
    """Check what the launchers rely on. `run` gets a command, its stdin, and variables; SLURM_JOB_ID must be set."""
    done = run(argv_on("node2", ["sh", "-c", SAYS]), "given", {"A_VARIABLE": "value"})
    assert (done.returncode, done.stdout) == (3, "given value known\n"), done.stderr
    assert last_line(done.stderr) == "the reason", f"the command's own error, not srun's: {done.stderr}"
    assert run(argv_on("node2", ["sh", "-c", "kill -9 $$"]), "", {}).returncode == 137
    assert run(argv_on("node2", ["true"]), "not read", {}).returncode == 0
