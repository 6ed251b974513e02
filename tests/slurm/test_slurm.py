"""Runs under a real Slurm: batch jobs, allocations, arrays, requeued and cancelled jobs, nodes that leave."""

import subprocess
import sys
import textwrap

import pytest

from tests.namespaces import HFDT, NFDT, until
from tests.slurm.cluster import LOGIN, NODES
from tests.slurm.job import BOTH, TRAIN, Job, check_losses, losses, nothing_left, started
from tests.slurm.secrets import USERS_SECRET, no_secret_shown
from tests.srun import check_srun
from tests.strangers import no_stranger_is_connected

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(400)]
LOOP = """
    import sys, time
    from pathlib import Path
    import numpy as np
    import tensorflow as tf

    tf.keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    y = (x.sum(1) > 0).astype("int32")
    model = tf.keras.Sequential([tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dense(2)])
    optimizer = tf.keras.optimizers.SGD(0.1)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(a, b):
        with tf.GradientTape() as tape:
            loss = loss_of(b, model(a))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.weights), model.weights))
        return loss

    print("loss", *[f"{float(step(x[i:i + 16], y[i:i + 16])):.6f}" for i in (0, 16, 32, 48)], flush=True)
    while sys.argv[1:] and not Path(sys.argv[1]).exists():
        time.sleep(0.05)
"""


SERVERS = "-q -np 2 --ps 1"
LISTENED = [
    pytest.param(HFDT, "-q", ["node2"], id="hfdt"),
    pytest.param(NFDT, SERVERS, ["node2", "node3"], id="nfdt"),
    pytest.param(NFDT, f"{SERVERS} --restarts 1", ["node2", "node3"], id="nfdt-restarts"),
]


@pytest.mark.parametrize(("command", "options", "nodes"), LISTENED)
def test_a_batch_job_has_the_results_of_one_machine_and_shows_no_secret(
    slurm, alone, tmp_path, command, options, nodes
):
    """Submitted over ssh, by a user whose environment has a secret of its own. The last node has NFDT's server."""
    env = ("SSH_CONNECTION=192.0.2.1 1 192.0.2.2 22", USERS_SECRET)
    with no_secret_shown(slurm, *nodes) as look:
        line = f"RUN {options} train.py go"
        job = Job(slurm, tmp_path, f"-N{len(nodes) + 1} --ntasks-per-node=1", line, command, env=env)
        job.until_said("epoch 2")
        look()
        job.go.touch()
        assert job.ended() == "COMPLETED", job.said()
    check_losses(command, job.said(), alone)
    assert nothing_left(slurm)


def test_parameter_servers_and_workers_share_an_allocation(slurm, tmp_path):
    """Each mpirun starts daemons by a step of its own, and the second does not wait for the end of the first."""
    line = "RUN -q --algorithm ssgd -np 2 --ps 1 train.py"
    job = Job(slurm, tmp_path, "-N3 --ntasks-per-node=1 --export=NONE", line, NFDT)
    assert job.ended() == "COMPLETED", job.said()
    first, *_, last = losses(job.said())
    assert last < first
    assert nothing_left(slurm)


@BOTH
def test_a_scripts_own_loop_runs_on_nodes_and_shows_no_secret(slurm, tmp_path, command):
    with no_secret_shown(slurm, "node2") as look:
        job = Job(slurm, tmp_path, "-N2 --ntasks-per-node=1", "RUN -q train.py go", command, LOOP, (USERS_SECRET,))
        job.until_said("loss")
        look()
        job.go.touch()
        assert job.ended() == "COMPLETED", job.said()
    here = subprocess.run([sys.executable, tmp_path / "train.py"], capture_output=True, text=True, check=True).stdout
    if command is HFDT:
        assert losses(job.said()) == pytest.approx(losses(here), rel=1e-4)
    assert nothing_left(slurm)


@pytest.mark.parametrize(
    ("command", "worker", "said"),
    [
        pytest.param(HFDT, "hfdt.worker.process", "restart 1 of 1", id="hfdt"),
        pytest.param(NFDT, "nfdt.worker.process", "replacement 1 of 1 starts", id="nfdt"),
    ],
)
def test_salloc_on_a_login_host_trains_on_nodes_replaces_a_worker_and_shows_no_secret(
    slurm, alone, tmp_path, command, worker, said
):
    """HFDT's mpirun is on the login host. NFDT trains on with one worker while another srun starts the second."""
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    workers, epochs = ((), 4) if command is HFDT else (("-np", 2), 300)
    run = (*command, "run", *workers, "--restarts", 1, tmp_path / "train.py", tmp_path / "go", epochs)
    argv = slurm.on(LOGIN, USERS_SECRET, "salloc", "-N3", "--ntasks-per-node=1", *run)
    printed = (tmp_path / "out").read_text
    with no_secret_shown(slurm, *NODES) as look, started(argv, tmp_path / "out") as running:
        until(lambda: "epoch 2" in printed() or running.poll() is not None, 200, printed)
        look()
        slurm.kill("node2", worker)
        (tmp_path / "go").touch()
        until(lambda: said in printed() or running.poll() is not None, 100, printed)
        assert running.wait(200) == 0, printed()
    assert len(losses(printed())) == epochs and said in printed()
    if command is HFDT:
        check_losses(command, printed(), alone)
        assert "workers:     3" in printed()
    assert nothing_left(slurm)


@pytest.mark.parametrize(
    ("start", "workers", "others"),
    [
        pytest.param("srun -N1 -n1 {}", "-np 3", (), id="srun"),
        pytest.param("env SHELL={} salloc -N3 --ntasks-per-node=1", "", NODES[1:], id="salloc"),
        pytest.param("srun -N3 --ntasks-per-node=1 --pty bash --rcfile {}", "", NODES[1:], id="srun-pty"),
    ],
)
@BOTH
def test_a_command_in_a_step_of_one_task_or_in_a_shell_trains_and_shows_no_secret(
    slurm, alone, tmp_path, command, start, workers, others
):
    """A step of one node, and the shells on the first node that salloc and srun open at a terminal.

    The user's secret is set in the shell: the user's own srun would send it.
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    shell, out = tmp_path / "shell", tmp_path / "out"
    run = " ".join([*command, "run", workers])
    line = f"{run} {tmp_path}/train.py {tmp_path}/go > {out} 2>&1"
    shell.write_text(f"#!/bin/bash\nexport {USERS_SECRET}\n{line}\nexit $?\n")
    shell.chmod(0o755)
    argv = slurm.on(LOGIN, "script", "-qec", start.format(shell), "/dev/null")

    def said():
        return "".join(file.read_text() for file in (tmp_path / "terminal", out) if file.exists())

    with no_secret_shown(slurm, *others) as look, started(argv, tmp_path / "terminal") as running:
        until(lambda: "epoch 2" in said() or running.poll() is not None, 200, said)
        look()
        (tmp_path / "go").touch()
        assert running.wait(200) == 0, said()
    check_losses(command, out.read_text(), alone)
    assert "workers:     3" in out.read_text(), "the slots of all nodes, not the default of two"
    assert nothing_left(slurm)


@BOTH
def test_no_stranger_reaches_mpirun_and_the_daemons_that_srun_starts(slurm, alone, tmp_path, command):
    """NFDT has two mpiruns, of which one has a daemon on the other node."""
    line = "HFDT_FILTER_PORTS=1 RUN -q --log-dir logs train.py go"
    job = Job(slurm, tmp_path, "-w node1,node2 --ntasks-per-node=1", line, command)
    job.until_said("epoch 2")
    with no_stranger_is_connected(slurm, ("node1", "node2"), "node3"):
        job.go.touch()
        assert job.ended() == "COMPLETED", job.said()
    check_losses(command, job.said(), alone)
    assert not any("not filtered" in log.read_text() for log in (tmp_path / "logs").glob("mpirun*.log"))
    assert nothing_left(slurm)


@BOTH
def test_an_array_of_jobs_has_the_slots_of_one_node_each_and_shows_no_secret(slurm, alone, tmp_path, command):
    line = "RUN --log-dir logs-$SLURM_ARRAY_TASK_ID train.py > out-$SLURM_ARRAY_TASK_ID 2>&1"
    outs = [tmp_path / f"out-{n}" for n in (1, 2)]
    with no_secret_shown(slurm):
        Job(slurm, tmp_path, "-N1 --ntasks=3 --array=1-2", line, command, env=(USERS_SECRET,))
        until(lambda: all(out.exists() for out in outs) and slurm.idle(), 200, lambda: slurm.slurm("squeue"))
    for out in outs:
        check_losses(command, out.read_text(), alone)
        assert "workers:     3" in out.read_text(), "its tasks, not the default of two"
    assert nothing_left(slurm)


@BOTH
def test_a_drained_node_finishes_its_job(slurm, alone, tmp_path, command):
    job = Job(slurm, tmp_path, "-w node1,node2 --ntasks-per-node=2", "RUN -q train.py go", command)
    job.until_said("epoch 2")
    slurm.slurm("scontrol", "update", "NodeName=node2", "State=DRAIN", "Reason=test")
    try:
        assert "draining" in slurm.slurm("sinfo", "-h", "-n", "node2", "-o", "%T")
        job.go.touch()
        assert job.ended() == "COMPLETED", job.said()
    finally:
        slurm.slurm("scontrol", "update", "NodeName=node2", "State=RESUME")
    check_losses(command, job.said(), alone)
    assert nothing_left(slurm)


@BOTH
def test_a_cancelled_job_leaves_nothing(slurm, tmp_path, command):
    job = Job(slurm, tmp_path, "-N3 --ntasks-per-node=1", "RUN -q -np 2 train.py go", command)
    job.until_said("epoch 2")
    slurm.slurm("scancel", job.id)
    assert job.ended() == "CANCELLED"
    assert nothing_left(slurm)


def test_a_cancelled_step_ends_the_run_with_an_error(slurm, tmp_path):
    job = Job(slurm, tmp_path, "-w node1,node2 --ntasks-per-node=1", "RUN -q train.py go")
    job.until_said("epoch 2")
    steps = slurm.slurm("squeue", "-h", "-s", "-o", "%i").split()
    (daemons,) = [step for step in steps if step.rpartition(".")[2].isdecimal()]  # 7.0; the script itself is 7.batch
    slurm.slurm("scancel", daemons)
    job.go.touch()
    assert job.ended() == "FAILED"
    assert "was lost" in job.said() and "Traceback" not in job.said(), job.said()
    assert nothing_left(slurm)


@BOTH
def test_a_node_whose_slurmd_dies_ends_the_job_and_leaves_nothing(slurm, tmp_path, command):
    job = Job(slurm, tmp_path, "-w node1,node2 --ntasks-per-node=1 --no-requeue", "RUN -q train.py go", command)
    job.until_said("epoch 2")
    slurm.kill_slurmd("node2")
    try:
        assert job.ended() == "NODE_FAIL"
        until(lambda: not slurm.left(), 60, slurm.left)
    finally:
        slurm.start_slurmd("node2")
    assert nothing_left(slurm)


def test_srun_does_what_the_launchers_rely_on(slurm, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")

    def run(argv, given, env):
        variables = [f"{name}={value}" for name, value in env.items()]
        words = slurm.on(LOGIN, "env", *variables, "salloc", "-Q", "-w", "node2", *argv)
        return subprocess.run(words, input=given, capture_output=True, text=True, timeout=60, check=False)

    check_srun(run)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("srun", "--ntasks=2"), "--ntasks=2 on 1 of 1 nodes"),
        (("salloc", "-N2", "srun", "--overlap", "--nodes=1", "--ntasks=1"), "--ntasks=1 on 1 of 2 nodes"),
    ],
)
def test_a_command_that_srun_starts_several_times_or_on_some_nodes_is_refused(slurm, tmp_path, words, said):
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    argv = slurm.on(LOGIN, *words, *HFDT, "run", tmp_path / "train.py")
    refused = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2 and said in refused.stderr and "Traceback" not in refused.stderr
