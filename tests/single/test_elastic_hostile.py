"""A hostile caller of the service that elastic workers join: without the token, and with it but wrong requests."""

import grpc
import pytest

from fdt import __version__
from fdt.rpc.join_pb2 import JoinRequest
from fdt.supervise.joining import JoinConnection
from fdt.supervise.processes import MOST
from tests.hostile import CASES, answers
from tests.single.test_elastic_workers import reception, registry  # noqa: F401  (fixtures)

JOIN = "/fdt.rpc.JoinService/Join"


def honest(rng):
    """Of another version, or for workers by the thousand or by none."""
    return [
        JoinRequest(version="9" * 1000, workers=1),
        JoinRequest(version=__version__, workers=rng.choice([0, MOST + 1, 2**32 - 1]), engine="nfdt"),
        JoinRequest(version=__version__, workers=1, engine=rng.choice(["", "hfdt", "x" * 1000])),
        JoinRequest(host="x" * 10_000),
    ]


@pytest.mark.parametrize("token", ["", "wrong", "secret"])
def test_noise_takes_no_place_and_ends_no_run(reception, token):  # noqa: F811
    codes = answers(reception.address, JOIN, honest, token, CASES if token == "secret" else 20)
    assert grpc.StatusCode.OK not in codes
    assert (codes == {grpc.StatusCode.UNAUTHENTICATED}) is (token != "secret")
    call = JoinConnection(reception.address, "secret", None, MOST, "nfdt")
    assert len(call.place.ranks) == MOST, "all places are free"
    call.close()
