"""A hostile caller of a parameter server: one without the token, and one with it that is no worker of the job."""

import grpc
import keras
import pytest

from nfdt.rpc import parameter_server_pb2 as pb
from tests.hostile import CASES, answers
from tests.single.nfdt_cluster import make_model

CALLS = ("/nfdt.rpc.ParameterServer/Session", "/nfdt.rpc.ParameterServer/Follow")


def honest(rng):
    """A worker's words out of order, of another job or by a number that is none."""
    hello = pb.Hello(
        job=rng.choice(["", "x", "j "]), worker=rng.choice([0, 1, 2**32 - 1]), push_file="../../etc/passwd"
    )
    return [
        pb.ToServer(hello=hello),
        pb.ToServer(hello=pb.Hello(job="j", worker=rng.choice([1, 2, 2**31]))),
        pb.ToServer(next=pb.Next(pull=2**60)),
        pb.ToServer(push=pb.Push(push=1, batches=[0], nbytes=2**62, absent=[2**32 - 1])),
        pb.ToServer(end=pb.EndOfData(batch=2**64 - 1)),
        pb.FollowRequest(job="y", generation=7),
    ]


@pytest.mark.parametrize("method", CALLS)
@pytest.mark.parametrize("token", ["", "wrong", "right"])
def test_noise_ends_no_run_and_stops_no_worker(cluster, monkeypatch, method, token):
    """`_failed` of the cluster would raise, and the job would end."""
    monkeypatch.setattr("nfdt.server.service.SETUP_S", 0.0)  # a job's name that is none is waited for
    served = cluster(make_model(keras.optimizers.SGD(0.1)))
    channels = served.channels()
    sent, cases = (served.token, CASES) if token == "right" else (token, 20)
    codes = answers(served.addresses[0], method, honest, sent, cases)
    assert grpc.StatusCode.OK not in codes
    assert (codes == {grpc.StatusCode.UNAUTHENTICATED}) is (token != "right")
    served.start(0)
    assert channels.ask()[0].tensors, "the worker goes on"
    channels.close()
