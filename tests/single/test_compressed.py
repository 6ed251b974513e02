"""Compressed calls: a server of ours refuses them before it decompresses anything."""

import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from fdt.rpc.tensor_pb2 import Chunk
from fdt.security.auth import credentials
from fdt.service.transport import MAX_MESSAGE_BYTES, open_channel

SERVER = """
import sys
from fdt.blobs import LocalBlobs
from fdt.service.server import listen
from fdt.service.transport import new_server

blobs = LocalBlobs.create()
running = listen(new_server("right"), blobs, "127.0.0.1:0", None)
print(running.address, flush=True)
sys.stdin.read()
running.stop()
blobs.close()
"""
MESSAGES, MB, ROOM_KB = 5, 60, 16 << 10  # each message is below the limit of size; 300 MB of zeros are 0.3 MB of gzip


@pytest.fixture
def server():
    """Yield a server in a process of its own, whose memory is that of the server alone."""
    argv = [sys.executable, "-c", SERVER]
    running = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield running.stdout.readline().strip(), lambda: peak_kb(running.pid)
    finally:
        running.communicate()


def peak_kb(pid):
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1])


def put(channel, nbytes, **options):
    """Return the status of a call that sends zeros."""
    zeros = Chunk(data=bytes(nbytes)).SerializeToString()
    call = channel.stream_unary("/fdt.rpc.BlobService/Put")
    try:
        call(iter([zeros] * MESSAGES), metadata=credentials("right"), timeout=60, **options)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate], ids=["gzip", "deflate"])
def test_a_compressed_call_is_refused_and_takes_no_memory(server, algorithm):
    address, peak = server
    assert MB << 20 < MAX_MESSAGE_BYTES
    with open_channel(address) as ours:
        assert put(ours, 1) is grpc.StatusCode.OK, "an uncompressed call is served"
        before = peak()
        with grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1)]) as channel:
            assert put(channel, MB << 20, compression=algorithm) is grpc.StatusCode.UNIMPLEMENTED
        assert peak() - before < ROOM_KB
        assert put(ours, 1) is grpc.StatusCode.OK
