"""Shared memory that is full or tiny: blobs go to disk, tensors by streams. And no decision uses the wall clock."""

import ast
import errno
from pathlib import Path

import numpy as np
import pytest

from fdt import PACKAGES, blobs
from fdt.blobs import LocalBlobs
from fdt.errors import UserError
from fdt.rpc.tensor_pb2 import BlobRef

ROOT = Path(__file__).resolve().parents[2]
ROOM = 1000
WALL_CLOCK = {  # whoever reads a record, a certificate, a table, or a run's directory tomorrow; the script itself
    "client_shim/replica/clocks.py",
    "client_shim/verify/command.py",
    "fdt/launch/placement.py",
    "fdt/launch/probe.py",
    "fdt/report/records.py",
    "fdt/runs.py",
    "fdt/security/auth.py",
    "fdt/security/authority.py",
    "fdt/timeline.py",
}


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A store with room for few bytes in each of its files; `disk` is where the others are."""
    disk = tmp_path / "disk"
    disk.mkdir()
    monkeypatch.setattr(blobs.tempfile, "tempdir", str(disk))
    sized, written = blobs._sized, blobs._written
    here = tmp_path / "memory"
    here.mkdir()

    def is_full(path, nbytes):
        return Path(path).parent == here and nbytes > ROOM

    def sized_there(path, nbytes):
        if is_full(path, nbytes):
            raise OSError(errno.ENOSPC, "no space left on device")
        return sized(path, nbytes)

    monkeypatch.setattr(blobs, "_sized", sized_there)
    monkeypatch.setattr(blobs, "_written", lambda f, p: not is_full(f.name, f.tell() + len(p)) and written(f, p))
    store = LocalBlobs(here)
    store.disk = disk
    return store


def on_disk(store):
    return sorted(file.stat().st_size for file in store.disk.glob("*/*"))


def test_what_finds_no_room_is_on_disk_and_nobody_sees_it(tiny):
    small, large = tiny.put(b"s" * ROOM), tiny.put(b"l" * 5 * ROOM)
    array = np.arange(1000.0)
    packed = tiny.put_arrays([array])
    assert len(on_disk(tiny)) == 2
    other = LocalBlobs.open(str(tiny.directory))  # another process
    assert (bytes(other.get(small)), bytes(other.get(large))) == (b"s" * ROOM, b"l" * 5 * ROOM)
    np.testing.assert_array_equal(other.get_arrays(packed)[0], array)
    assert other.holds(large.id)
    twice = other.keep(large)
    other.drop(large)
    assert not other.holds(large.id) and bytes(tiny.get(twice)) == b"l" * 5 * ROOM
    other.drop(twice)
    other.drop(packed)
    assert on_disk(tiny) == []
    tiny.put(b"x" * 5 * ROOM)
    tiny.close()
    assert not tiny.directory.exists() and not list(tiny.disk.iterdir())


def test_a_blob_that_grows_out_of_memory_moves(tiny):
    parts = [bytes([n]) * 400 for n in range(9)]
    ref = tiny.put_parts(parts)
    assert (ref.nbytes, bytes(tiny.get(ref))) == (3600, b"".join(parts))
    assert on_disk(tiny) == [3600]


def test_where_the_disk_is_full_too_both_are_named_and_nothing_stays(tiny, monkeypatch):
    def full(path, nbytes):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(blobs, "_sized", full)
    with pytest.raises(UserError, match=f"{tiny.directory} and {tiny.disk} have no room for 5,000 bytes more"):
        tiny.put(b"x" * 5000)
    monkeypatch.undo()
    monkeypatch.setattr(blobs, "_written", lambda file, part: False)
    with pytest.raises(UserError, match="have no room for more bytes"):
        tiny.put_parts([b"x"])
    assert [file.name for file in tiny.directory.iterdir() if file.name != blobs.DISK] == []
    tiny.drop(BlobRef(id="0"))


def test_nothing_but_what_people_read_goes_by_the_wall_clock():
    """Which jumps: a lease, a heartbeat, a deadline that it decides would end too early or never."""
    found = set()
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            if any(_reads_wall_clock(node) for node in ast.walk(ast.parse(file.read_text()))):
                found.add(str(file.relative_to(ROOT)))
    assert found <= WALL_CLOCK, "time.monotonic() for what is measured or waited for"
    assert found, "the look finds what there is"


def _reads_wall_clock(node):
    if isinstance(node, ast.ImportFrom) and node.module == "time":
        return any(name.name == "time" for name in node.names)
    if not isinstance(node, ast.Attribute):
        return False
    if node.attr == "channel_ready_future":  # gRPC's deadline of it is one of the wall clock
        return True
    whose = getattr(node.value, "id", getattr(node.value, "attr", ""))
    return (whose, node.attr) in {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow")}
