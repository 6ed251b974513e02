"""Jobs of Slurm that are preempted, requeued or cancelled, by the batch script of the guide and others."""

import re
from pathlib import Path

import pytest

from fdt.launch.namespaces import crossed, network_of
from tests.namespaces import HFDT, until
from tests.slurm.cluster import NODES
from tests.slurm.job import BOTH, Job, check_losses, losses, nothing_left, printed_alone
from tests.slurm.secrets import USERS_SECRET, no_secret_shown

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(500)]
STEPS = """
    import keras
    import numpy as np

    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(12_000, 8)).astype("float32")
    y = (x.sum(1) > 0).astype("int32")

    class Rows(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="rows")
            self.total = self.add_weight(name="total", initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.total.assign_add(keras.ops.sum(keras.ops.ones_like(y_pred[:, 0])))

        def result(self):
            return self.total

    class Says(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            print("epoch", epoch, flush=True)

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, metrics=[Rows()])
    history = model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=[Says()]).history
    print("loss", *[f"{value:.6f}" for value in history["loss"]])
    print("rows", *map(int, history["rows"]), "steps", int(model.optimizer.iterations))
"""
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "slurm.md"


@pytest.fixture(scope="module")
def steps_alone(tmp_path_factory):
    """The losses of STEPS on one machine."""
    return losses(printed_alone(tmp_path_factory.mktemp("steps"), STEPS))


@BOTH
def test_a_requeued_job_resumes_and_shows_no_secret(slurm, alone, tmp_path, command):
    """HFDT to the same numbers. It is in a callback when it is signalled."""
    lines = """
        if [ -d runs/$SLURM_JOB_ID ]; then RUN --resume runs/$SLURM_JOB_ID
        else RUN --grace-period 4s --run-dir runs/$SLURM_JOB_ID train.py go; fi
    """
    with no_secret_shown(slurm, "node2", runs=2) as look:
        job = Job(slurm, tmp_path, "-N2 --ntasks-per-node=1 --requeue", lines, command, env=(USERS_SECRET,))
        job.until_said("epoch 2")
        look()
        slurm.slurm("scontrol", "requeue", job.id)
        job.starts_again()
        assert job.ended() == "COMPLETED", job.said()
    assert job.field("Restarts") == "1" and job.said().count("epoch 0") == 1, job.said()
    check_losses(command, job.said(), alone)
    assert nothing_left(slurm)


def guides_script() -> str:
    (script,) = [t for t in re.findall(r"```bash\n(.*?)```", GUIDE.read_text(), re.S) if "--signal=B:USR1" in t]
    return script.replace("hfdt run", "RUN")


def guides_job(slurm, directory: Path, command, env=()) -> Job:
    """The batch script of the guide, in its second epoch; its steps are many."""
    job = Job(slurm, directory, "-N2 --ntasks-per-node=1", guides_script(), command, STEPS, env)
    job.until_said("epoch 0", 300)

    def node2s_bytes() -> int:
        return sum(crossed(network_of(slurm.pids["node2"])).values())

    before = node2s_bytes()
    until(
        lambda: node2s_bytes() > before + 100_000, 100, job.said
    )  # an epoch sends 2 MB or more: it is within the second
    return job


SIGNAL, REQUEUE = ("scancel", "--batch", "--signal=USR1"), ("scontrol", "requeue")
# A job that needs the whole nodes, in a partition with a higher tier. The preempted job's number is its name.
URGENT = ("sbatch", "--partition=urgent", "--nodes=2", "--nodelist=node1,node2", "--exclusive", "--output=/dev/null")
PREEMPT = (*URGENT, "--wrap=sleep 1", "--job-name")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", [SIGNAL, REQUEUE, PREEMPT], ids=["signal", "requeue", "preempt"])
@BOTH
def test_the_guides_job_is_preempted_and_continues_from_its_step(slurm, steps_alone, tmp_path, command, how):
    """Its time is over soon; or Slurm requeues it, by command or for another job, and signals all its processes."""
    job = guides_job(slurm, tmp_path, command, ("HFDT_FILTER_PORTS=1",) if how is REQUEUE else ())
    slurm.slurm(*how, job.id)
    if how is PREEMPT:
        until(lambda: slurm.slurm("squeue", "-h", "-p", "urgent") == "", 200, lambda: slurm.slurm("squeue"))
    job.starts_again()
    assert job.ended(400) == "COMPLETED" and job.field("Restarts") == "1", job.said()
    saved = re.search(r"preempted by SIG(?:USR1|TERM): the run is saved up to step ([\d,]+) of epoch 2", job.said())
    assert saved and f"continues from step {saved[1]} of epoch 2 of 2" in job.said(), job.said()
    assert job.said().count("epoch 0") == 1 and "rows 12000 12000 steps 6000\n" in job.said(), job.said()
    check_losses(command, job.said(), steps_alone)
    assert nothing_left(slurm)


def test_the_guides_job_that_is_cancelled_stays_so(slurm, tmp_path):
    job = guides_job(slurm, tmp_path, HFDT)
    slurm.slurm("scancel", job.id)
    assert job.ended() == "CANCELLED"
    assert nothing_left(slurm) and "the run is saved up to step" in job.said(), job.said()
    assert (job.field("JobState"), job.field("Restarts")) == ("CANCELLED", "0")


@pytest.mark.timeout(900)
def test_slurms_own_timer_signals_the_guides_job(slurm, alone, tmp_path):
    """Slurm looks at the time every 30 s and may signal a minute early: here after 30 to 60 s of 120."""
    lines = guides_script().replace(" train.py", " train.py go")
    job = Job(slurm, tmp_path, "-N2 --ntasks-per-node=1 --time=2", lines)
    job.until_said("preempted by SIGUSR1", 200)
    job.starts_again()
    assert job.ended(400) == "COMPLETED" and int(job.field("Restarts")) >= 1, job.said()
    check_losses(HFDT, job.said(), alone)
    assert nothing_left(slurm)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("failed", ["node1", "node2"])
@BOTH
def test_the_guides_job_outlives_a_failed_node(slurm, steps_alone, tmp_path, command, failed):
    """Slurm requeues the job where the script's own node failed; elsewhere the script does. Node 3 takes the place."""
    job = guides_job(slurm, tmp_path, command)
    until(lambda: list((tmp_path / "runs" / job.id).glob("fit-*-epoch-00001.ckpt")), 60, job.said)
    others = [name for name in NODES if name != failed]
    slurm.fail(failed)
    try:
        job.until_said("continues from the end of epoch 1 of 2", 400)  # Slurm waits for the node, and two minutes
        assert job.ended(400) == "COMPLETED" and job.field("Restarts") == "1", job.said()
        assert slurm.slurm("scontrol", "show", "hostnames", job.field("NodeList")).split() == others
    finally:
        slurm.start_slurmd(failed)
    assert job.said().count("epoch 0") == 1 and "rows 12000 12000 steps 6000\n" in job.said(), job.said()
    check_losses(command, job.said(), steps_alone)
    assert nothing_left(slurm)
