"""A hostile caller at a parameter server's door: a stranger, and one with the token who is no worker of its job."""

import random

import grpc
import pytest

from fdt.service.auth import credentials
from fdt.service.transport import open_channel
from nfdt.rpc import parameter_server_pb2 as pb
from tests.single.test_nfdt_shards import cluster, keras, make_model  # noqa: F401  (a fixture)

CASES = 200
ANSWER_S = 60.0
CALLS = ("/nfdt.rpc.ParameterServer/Session", "/nfdt.rpc.ParameterServer/Follow")


def noise(seed):
    """Random bytes, and a worker's words out of order, cut short, of another job or by a number that is none."""
    rng = random.Random(seed)
    hello = pb.Hello(
        job=rng.choice(["", "x", "j "]), worker=rng.choice([0, 1, 2**32 - 1]), push_file="../../etc/passwd"
    )
    honest = [
        pb.ToServer(hello=hello),
        pb.ToServer(hello=pb.Hello(job="j", worker=rng.choice([1, 2, 2**31]))),
        pb.ToServer(next=pb.Next(pull=2**60)),
        pb.ToServer(push=pb.Push(push=1, batches=[0], nbytes=2**62, absent=[2**32 - 1])),
        pb.ToServer(end=pb.EndOfData(batch=2**64 - 1)),
        pb.FollowRequest(job="y", generation=7),
    ]
    messages = []
    for _ in range(rng.randrange(4)):
        data = rng.choice(honest).SerializeToString()
        if rng.random() < 0.5:
            data = data[: rng.randrange(len(data) + 1)]
        messages.append(rng.randbytes(rng.randrange(200)) if rng.random() < 0.3 else data)
    return messages


@pytest.mark.parametrize("method", CALLS)
@pytest.mark.parametrize("token", ["", "wrong", "right"])
def test_noise_ends_no_run_and_stops_no_worker(cluster, monkeypatch, method, token):  # noqa: F811
    """`_failed` of the cluster would raise, and the job would end."""
    monkeypatch.setattr("nfdt.server.service.SETUP_S", 0.0)  # a job's name that is none is waited for
    served = cluster(make_model(keras.optimizers.SGD(0.1)))
    courier = served.courier()
    metadata = credentials(served.token if token == "right" else token) if token else ()
    codes = set()
    with open_channel(served.addresses[0]) as channel:
        for seed in range(CASES if token == "right" else 20):
            with pytest.raises(grpc.RpcError) as refused:
                list(channel.stream_stream(method)(iter(noise(seed)), metadata=metadata, timeout=ANSWER_S))
            codes.add(refused.value.code())
    assert grpc.StatusCode.DEADLINE_EXCEEDED not in codes
    assert (codes == {grpc.StatusCode.UNAUTHENTICATED}) is (token != "right")
    served.start(0)
    assert courier.ask().HasField("weights"), "the worker goes on"
    courier.close()
