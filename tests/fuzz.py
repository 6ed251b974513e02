"""Fuzzes every decoder of bytes that others send: `python -m tests.fuzz [CASES]`, 10,000 cases for each by default.

The cases are seeded: messages filled at random, then bytes changed, cut off, repeated or exchanged. A decoder may raise
the errors that its callers handle, and nothing else. A case that does prints its seed. The decoders of most message
types are protobuf's own; tests/fuzz_handlers.py and tests/fuzz_sessions.py pass messages on to our handlers.
"""

import importlib
import json
import random
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from google.protobuf.message import DecodeError

from client_shim.resume.saved import Saved
from fdt import rundir, tensors
from fdt.blobs import LocalBlobs
from fdt.errors import UserError
from fdt.job import JobSpec
from fdt.launch import sealed
from fdt.network.reading import parse_cluster
from fdt.process_group.streams import ConnectionLost, MessageStream
from fdt.rpc import job_pb2
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.security.auth import TlsIdentity
from frontends.report.reader import RunReader
from hfdt.collectives.datagrams import PacketId, Wire
from hfdt.collectives.repair import ReceiverReport, Receiving
from tests.fuzz_handlers import coordinators
from tests.fuzz_sessions import sessions

PROTOS = Path(__file__).parents[1] / "proto"
CASES = 10_000
CLUSTER = "link: {bandwidth: 1 Gbit/s}\nnodes:\n  - name: a\n    count: 2\n  - name: b\n    uplink: {latency: 1 ms}\n"
STRUCTURE = b'{"dict": [["a", {"list": [0, null]}]]}'
HUGE = (0, 1, -1, 2**31 - 1, 2**32 - 1, 2**62, 2**63 - 1)
Decoder = Callable[[bytes], object]
Rng = random.Random
# a decoder's name, a maker of honest bytes, itself, and the errors that it may raise
Fuzzed = tuple[str, Callable[[Rng], bytes], Decoder, tuple[type[Exception], ...]]


def message_types() -> dict[str, type]:
    """Return every message type of proto/, by full name."""
    found = {}
    for file in sorted(PROTOS.rglob("*.proto")):
        module = importlib.import_module(f"{file.relative_to(PROTOS).with_suffix('')}_pb2".replace("/", "."))
        for name in module.DESCRIPTOR.message_types_by_name:
            found[f"{module.DESCRIPTOR.package}.{name}"] = getattr(module, name)
    return found


def filled(rng: Rng, kind: type, depth: int = 3) -> object:
    """Return a message with fields at random, one of each `oneof`."""
    message = kind()
    one_of = {rng.choice(group.fields).name for group in message.DESCRIPTOR.oneofs}
    for field in message.DESCRIPTOR.fields:
        if field.containing_oneof is not None and field.name not in one_of:
            continue
        many = getattr(field, "is_repeated", None)
        many = field.label == field.LABEL_REPEATED if many is None else many
        entries = field.message_type is not None and field.message_type.GetOptions().map_entry
        if rng.random() < 0.4 or entries or (field.message_type is not None and not depth):
            continue
        for _ in range(rng.randrange(4) if many else 1):
            value = _value(rng, field, depth)
            try:
                if field.message_type is not None:
                    (getattr(message, field.name).add() if many else getattr(message, field.name)).CopyFrom(value)
                elif many:
                    getattr(message, field.name).append(value)
                else:
                    setattr(message, field.name, value)
            except (ValueError, TypeError):  # a number that the field cannot hold
                pass
    return message


def _value(rng: Rng, field: object, depth: int) -> object:
    if field.message_type is not None:
        return filled(rng, field.message_type._concrete_class, depth - 1)
    if field.cpp_type == field.CPPTYPE_STRING:
        return (
            rng.randbytes(rng.randrange(20)) if field.type == field.TYPE_BYTES else rng.choice(["", "../x", "1", "\0"])
        )
    if field.cpp_type == field.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return rng.choice([0.0, -1.0, float("nan"), float("inf"), 1e308])
    if field.cpp_type == field.CPPTYPE_ENUM:
        return rng.randrange(5)
    return rng.choice(HUGE)


def mutated(rng: Rng, data: bytes) -> bytes:
    """Return `data` with up to three changes; a fifth of all cases are left whole."""
    changed = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(5):
            case 0:
                changed[at : at + 1] = rng.randbytes(1)
            case 1:
                del changed[at:]
            case 2:
                changed[at:at] = changed[: rng.randrange(64)]
            case 3:
                changed[at:at] = rng.randbytes(rng.randrange(9))
            case 4:
                changed[at : at + 8] = (2 ** rng.randrange(64)).to_bytes(8, "little")
    return bytes(changed)


def _received(data: bytes) -> object:
    """A message of a process group's stream, all of whose bytes have arrived."""
    one, other = socket.socketpair()
    with one, other:
        one.sendall(data)
        one.close()
        return MessageStream(other).receive(limit=1 << 16)


def _arrived(wire: Wire) -> Decoder:
    def decode(data: bytes) -> None:
        assert wire.open(memoryview(data)) is None, "a datagram without the run's key was taken"
        known = wire.open(memoryview(wire._tag(data) + data))
        if known is not None and hasattr(known, "payload") and known.nbytes < 1 << 20:
            Receiving(known.nbytes).take(known.number, known.payload)

    return decode


def _checkpoint(folder: Path) -> Decoder:
    def decode(header: bytes) -> None:
        parts = [rundir.MAGIC, len(header).to_bytes(8, "little"), header, tensors.pack([np.ones(3)])]
        (folder / "c").write_bytes(b"".join([*parts, rundir.hashlib.blake2b(b"".join(parts), digest_size=32).digest()]))
        Saved.check(*rundir.read_checkpoint(folder / "c"))

    return decode


def _records(folder: Path) -> Decoder:
    def decode(data: bytes) -> None:
        (folder / "records.jsonl").write_bytes(data)
        reader = RunReader(folder, "fuzzed")
        reader.update()
        json.dumps(reader.as_json())

    return decode


def message_decoders() -> Iterator[Fuzzed]:
    """Yield the decoder of each message type."""
    for name, kind in message_types().items():
        decode = (
            (lambda data: JobSpec.from_proto(job_pb2.JobSpec.FromString(data))) if kind is job_pb2.JobSpec else None
        )
        honest = lambda rng, kind=kind: filled(rng, kind).SerializeToString()  # noqa: E731
        yield name, honest, decode or kind.FromString, (DecodeError, ValueError)


def decoders(folder: Path) -> Iterator[Fuzzed]:
    """Yield each decoder, those of messages first."""
    plain = {"history": {"dict": [["loss", {"array": 0}]]}, "epochs": {"list": [0]}, "random": {"list": []}}
    rest = {"done": False, "stopped": False, "callbacks": [["A", {"b": 1}]], "left_out": [], "signature": {}}
    header = json.dumps({"epoch": 1, "seed": 5, "counts": [1, 0, 0], **plain, **rest})
    said = '{"event": "job", "workers": 2}\n{"event": "epoch", "epoch": 1, "logs": {"loss": 0.5}}\n'
    arrays = bytes(tensors.pack([np.arange(9), np.array(["a", "bc"], object)]))
    stream = b"\x0d\0\0\0\x02\0\0\0\0\0\0\0" + b'{"rank": 123}' + b"xy"
    wire, packet = Wire(b"k" * 32), PacketId(3, 1, 0)
    datagrams = [
        wire.piece(packet, 0, 9, memoryview(b"123456789")),
        wire.report(packet, 1, ReceiverReport(1, ((2, 3),))),
    ]
    (folder / "deadbeef").write_bytes(b"123456789")
    store, identity = LocalBlobs(folder), TlsIdentity("a").dumps().encode()
    key = X25519PrivateKey.from_private_bytes(b"k" * sealed.KEY_BYTES)
    for_key = sealed.seal(key.public_key().public_bytes_raw().hex(), "a token").encode()
    yield from message_decoders()
    yield from coordinators(folder, filled)
    yield from sessions(folder, filled)
    yield "packed arrays", lambda rng: arrays, tensors.unpack, (ValueError,)
    yield "structures", lambda rng: STRUCTURE, lambda data: tensors.unflatten(_text(data), [1]), (ValueError,)
    yield "process group", lambda rng: stream, _received, (ConnectionLost, ValueError)
    yield "multicast", lambda rng: rng.choice(datagrams)[16:], _arrived(wire), (ValueError, struct.error)
    yield "checkpoints", lambda rng: header.encode(), _checkpoint(folder), (rundir.Damaged, *rundir.MALFORMED)
    yield "records", lambda rng: said.encode(), _records(folder), ()
    yield (
        "cluster files",
        lambda rng: CLUSTER.encode(),
        lambda data: parse_cluster(data.decode("latin-1")),
        (UserError,),
    )
    yield "sealed messages", lambda rng: for_key, lambda data: sealed.unseal(key, _text(data)), (ValueError,)
    yield "identities", lambda rng: identity, lambda data: TlsIdentity.loads(_text(data)), (ValueError, TypeError)
    yield (
        "blob names",
        lambda rng: b"deadbeef",
        lambda data: store.get(BlobRef(id=data.decode("latin-1"), nbytes=9)),
        (KeyError,),
    )


def _text(data: bytes) -> str:
    return data.decode("latin-1")


def main(cases: int = CASES) -> dict[str, int]:
    """Fuzz every decoder. Return how many cases each decoded; raise AssertionError with the seed of one that failed."""
    decoded = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, honest, decode, errors in decoders(Path(folder)):
            decoded[name] = 0
            for case in range(cases):
                rng = random.Random(f"{name} {case}")
                data = mutated(rng, honest(rng))
                try:
                    decode(data)
                    decoded[name] += 1
                except errors:
                    pass
                except Exception as error:
                    raise AssertionError(f"{name}, case {case}, {data!r}: {type(error).__name__}: {error}") from error
    return decoded


if __name__ == "__main__":
    began = time.process_time()
    count = int(sys.argv[1]) if len(sys.argv) > 1 else CASES
    found = main(count)
    for name, number in found.items():
        print(f"{name:40} {count:8,} cases {number:8,} decoded")
    print(
        f"{len(found)} decoders and handlers, {count * len(found):,} cases, {time.process_time() - began:.0f} s of CPU"
    )
