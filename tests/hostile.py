"""A hostile caller: random and broken messages to a network service, and the statuses that it returns."""

import random

import grpc

from fdt.security.auth import credentials
from fdt.service.transport import open_channel

CASES = 200  # of raw bytes, at each door
ANSWER_S = 60.0


def noise(seed, honest):
    """Messages of random bytes, of honest messages cut short, and of honest ones in a wild order.

    `honest(rng)`: what a caller of that door may say. A seed's case is the same each time.
    """
    rng = random.Random(seed)
    said = honest(rng)
    messages = []
    for _ in range(rng.randrange(4)):
        data = rng.choice(said).SerializeToString()
        if rng.random() < 0.5:
            data = data[: rng.randrange(len(data) + 1)]
        messages.append(rng.randbytes(rng.randrange(200)) if rng.random() < 0.3 else data)
    return messages


def answers(address, method, honest, token, cases=CASES):
    """All statuses that `cases` calls of noise get; none may be a hang. `token` "": none is sent."""
    metadata = credentials(token) if token else ()
    with open_channel(address) as channel:
        codes = {answer(channel, method, noise(seed, honest), metadata) for seed in range(cases)}
    return codes


def answer(channel, method, messages, metadata):
    """The status that the raw bytes `messages` get."""
    try:
        list(channel.stream_stream(method)(iter(messages), metadata=metadata, timeout=ANSWER_S))
    except grpc.RpcError as error:
        assert error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED, f"{method} hangs"
        assert not any(value in (error.details() or "") for _, value in metadata or ()), "a token is in the error"
        return error.code()
    return grpc.StatusCode.OK
