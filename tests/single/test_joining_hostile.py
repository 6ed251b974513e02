"""A hostile caller where workers join: a stranger, and one with the token who asks for what is not to be had."""

import random

import grpc
import pytest

from fdt import __version__
from fdt.service.auth import credentials
from fdt.service.guests import MOST
from fdt.service.transport import open_channel
from nfdt.joining.guest import Call
from nfdt.rpc.join_pb2 import JoinRequest
from tests.single.test_joining import hub, reception  # noqa: F401  (fixtures)

CASES = 200
ANSWER_S = 60.0
CALLS = ("/nfdt.rpc.JoinService/Join",)


def noise(seed):
    """Random bytes, requests cut short, of another version, or for workers by the thousand or by none."""
    rng = random.Random(seed)
    honest = [
        JoinRequest(version="9" * 1000, workers=1),
        JoinRequest(version=__version__, workers=rng.choice([0, MOST + 1, 2**32 - 1])),
        JoinRequest(host="x" * 10_000),
    ]
    messages = []
    for _ in range(rng.randrange(4)):
        data = rng.choice(honest).SerializeToString()
        if rng.random() < 0.5:
            data = data[: rng.randrange(len(data) + 1)]
        messages.append(rng.randbytes(rng.randrange(200)) if rng.random() < 0.3 else data)
    return messages


@pytest.mark.parametrize("method", CALLS)
@pytest.mark.parametrize("token", ["", "wrong", "secret"])
def test_noise_takes_no_place_and_ends_no_run(hub, reception, method, token):  # noqa: F811
    codes = set()
    with open_channel(reception.address) as channel:
        for seed in range(CASES if token == "secret" else 20):
            with pytest.raises(grpc.RpcError) as refused:
                metadata = credentials(token) if token else ()
                list(channel.stream_stream(method)(iter(noise(seed)), metadata=metadata, timeout=ANSWER_S))
            codes.add(refused.value.code())
    assert grpc.StatusCode.DEADLINE_EXCEEDED not in codes
    assert (codes == {grpc.StatusCode.UNAUTHENTICATED}) is (token != "secret")
    call = Call(reception.address, "secret", None, MOST)
    assert len(call.place.ranks) == MOST, "all places are free"
    call.close()
