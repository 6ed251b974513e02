from dataclasses import replace

from fdt.job import ArrayData, BatchHooks, FeedData, FitArguments, GraphData, JobSpec, Program, State
from fdt.rpc.job_pb2 import JobSpec as Message
from fdt.rpc.tensor_pb2 import BlobRef

REF = BlobRef(id="ab", nbytes=3)
JOB = JobSpec(
    id="1",
    program=Program("keras", "d", REF, REF),
    state=State(REF, REF),
    data=ArrayData(REF, "0", 7),
    fit=FitArguments(batch_size=64, class_weight={0: 0.5}, batch_hooks=BatchHooks.LOGS),
    validation=FeedData("v", -1),
    seed=2**63,
    options={"rule": "asgd"},
    surroundings="{}",
)


def test_a_job_survives_the_wire():
    for job in (JOB, replace(JOB, data=GraphData(REF, REF, REF, -2, 3), validation=None)):
        assert JobSpec.from_proto(Message.FromString(job.to_proto().SerializeToString())) == job
