"""Decoders of arbitrary input: they raise ValueError or KeyError, and allocate no memory by a declared size."""

import importlib
import json
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fdt import tensors
from fdt.blobs import LocalBlobs
from fdt.job import JobSpec
from fdt.rpc import job_pb2
from fdt.rpc.session_pb2 import Command, Event
from fdt.rpc.tensor_pb2 import BlobRef, TensorSpec, TensorTable
from fdt.security.auth import TlsIdentity
from fdt.service.handlers import StreamBroken
from fdt.service.server import ALLOWED, CommandOrder
from nfdt.rpc import parameter_server_pb2 as pb
from nfdt.transport.buffers import fill
from tests import fuzz
from tests.parallel import test_hostile
from tests.single import test_elastic_hostile, test_nfdt_hostile

CASES = 200
fuzzed = settings(
    max_examples=CASES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

sizes = st.integers(0, 2**64 - 1)
specs = st.builds(
    TensorSpec,
    dtype=st.sampled_from(["float32", "string", "bfloat16", "int64", "bool", "object", "f4,f4", "V8", "finfo", ""])
    | st.text(max_size=8),
    shape=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 8), max_size=4),
    offset=st.integers(0, 256) | sizes,
    nbytes=st.integers(0, 256) | sizes,
)
tables = st.lists(specs, max_size=4).map(lambda tensors: TensorTable(tensors=tensors).SerializeToString())


def packed(table: bytes, length: int | None, body: bytes) -> bytes:
    head = struct.pack("<Q", len(table) if length is None else length) + table
    return head + bytes(-len(head) % 64) + body


@fuzzed
@given(table=tables | st.binary(max_size=64), length=st.none() | sizes, body=st.binary(max_size=300))
def test_packed_arrays(table, length, body):
    try:
        arrays = tensors.unpack(packed(table, length, body))
    except ValueError:
        return
    assert sum(array.nbytes for array in arrays if array.dtype != object) <= 4 * len(body)


HUGE = 1 << 40


def declared(body: bytes = b"", **spec) -> bytes:
    return packed(TensorTable(tensors=[TensorSpec(**spec)]).SerializeToString(), None, body)


DECLARED = [
    packed(b"", HUGE, b""),
    declared(dtype="float32", shape=[HUGE], nbytes=HUGE),
    declared(dtype="int8", shape=[HUGE, 0]),
    declared(struct.pack("<Q", HUGE), dtype="string", shape=[HUGE], nbytes=8),
]


@pytest.mark.parametrize("data", DECLARED, ids=["table", "array", "empty", "strings"])
def test_a_declared_size_takes_no_memory(data):
    tracemalloc.start()
    try:
        tensors.unpack(data)
    except ValueError:
        pass
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20


@fuzzed
@given(data=st.binary(max_size=400))
def test_any_bytes_as_packed_arrays(data):
    try:
        tensors.unpack(data)
    except ValueError:
        pass


@fuzzed
@given(good=st.integers(0, 2**32), at=st.integers(0, 2000), value=st.integers(0, 255), cut=st.integers(0, 2000))
def test_packed_arrays_of_which_a_byte_was_changed_and_the_end_cut_off(good, at, value, cut):
    data = tensors.pack([np.arange(good % 50), np.array(["a", "bc" * (good % 7)], object)])
    data[at % len(data)] = value
    try:
        tensors.unpack(bytes(data[: cut % len(data)]) if cut % 3 else bytes(data))
    except ValueError:
        pass


json_like = st.recursive(
    st.none() | st.integers(-2, 2) | st.text(max_size=5) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["dict", "list", "tuple", "x"]), inner),
    max_leaves=8,
)


@fuzzed
@given(skeleton=json_like.map(json.dumps) | st.text(max_size=30), leaves=st.integers(0, 3))
def test_structures(skeleton, leaves):
    try:
        tensors.unflatten(skeleton, list(range(leaves)))
    except ValueError:  # json's own is one
        pass


def test_a_structure_that_is_too_deep():
    with pytest.raises(ValueError, match="Received"):
        tensors.unflatten('{"list": [' * 900 + "0" + "]}" * 900, [1])


MESSAGES = [job_pb2.JobSpec, Command, Event, TensorTable, pb.ToServer, pb.ToWorker, pb.Logged, pb.FollowRequest]


@fuzzed
@given(data=st.binary(max_size=200), kind=st.sampled_from(MESSAGES))
def test_messages(data, kind):
    try:
        message = kind.FromString(data)
        if kind is job_pb2.JobSpec:
            JobSpec.from_proto(message)
    except (DecodeError, ValueError):
        pass


commands = st.builds(
    lambda job, kind: Command(job=job, **({kind: {}} if kind else {})),
    st.sampled_from(["", "1", "2"]),
    st.sampled_from([*ALLOWED, "exit", None]),
)


@fuzzed
@given(given=st.lists(commands, max_size=8))
def test_what_an_engine_hears_of_a_client_is_one_job_in_order(given):
    ordered = CommandOrder(iter(given))
    heard = list(ordered)
    assert heard == given[: len(heard)] and bool(ordered.fault) == (len(heard) < len(given))
    kinds = [command.WhichOneof("kind") for command in heard]
    assert not kinds or (kinds[0] == "setup" and kinds.count("setup") == 1 and "exit" not in kinds)
    assert len({command.job for command in heard}) <= 1


@fuzzed
@given(name=st.text(max_size=20), nbytes=sizes)
def test_blobs_are_found_by_their_names_only(name, nbytes, tmp_path):
    (tmp_path / "outside").write_bytes(b"secret")
    (tmp_path / "store").mkdir(exist_ok=True)
    with pytest.raises(KeyError):
        LocalBlobs(tmp_path / "store").get(BlobRef(id=name or "none", nbytes=nbytes or 1))


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", ".lock", "a/b", "a\0b", ""])
def test_no_blob_is_outside_its_store(name, tmp_path):
    (tmp_path / "outside").write_bytes(b"secret")
    with pytest.raises(KeyError):
        LocalBlobs(tmp_path).get(BlobRef(id=name, nbytes=6))


def test_a_blob_is_not_mapped_beyond_its_end(tmp_path):
    ref = LocalBlobs(tmp_path).put(b"short")
    with pytest.raises(KeyError):
        LocalBlobs(tmp_path).get(BlobRef(id=ref.id, nbytes=1 << 40))


@fuzzed
@given(lengths=st.lists(st.integers(0, 50), max_size=4), chunks=st.lists(st.binary(max_size=60), max_size=6))
def test_tensors_on_a_stream(lengths, chunks):
    parts = [memoryview(bytearray(length)) for length in lengths]
    try:
        assert fill(parts, iter(chunks)) == sum(lengths)
    except (ValueError, StreamBroken):
        return
    assert b"".join(bytes(part) for part in parts) == b"".join(chunks)[: sum(lengths)]


@fuzzed
@given(text=st.text(max_size=40))
def test_identities(text):
    with pytest.raises((ValueError, TypeError)):
        TlsIdentity.loads(text)


def test_there_is_a_hostile_caller_for_every_call():
    """Who adds one to proto/ adds it to these files."""
    protos = Path(__file__).parents[2] / "proto"
    calls = set()
    for file in protos.rglob("*.proto"):
        name = f"{file.relative_to(protos).with_suffix('')}_pb2".replace("/", ".")
        services = importlib.import_module(name).DESCRIPTOR.services_by_name.values()
        calls |= {f"/{service.full_name}/{method.name}" for service in services for method in service.methods}
    clients = {*test_hostile.TRAINING, *test_hostile.POOL, *test_hostile.BLOBS, test_elastic_hostile.JOIN}
    tried = {*clients, test_hostile.HOLD, *test_hostile.MEMBERS, *test_nfdt_hostile.CALLS}
    assert calls == tried and len(calls) >= 11


def test_every_message_type_and_every_decoder():
    """A few of the cases of `python -m tests.fuzz`, which has 10,000 for each. Honest bytes are decoded, too."""
    decoded = fuzz.main(25)
    assert len(decoded) > 60 and all(decoded.values()), decoded
