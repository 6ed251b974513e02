"""A relay that delays the frames of emulated links: `python -m fdt.launch.delay NAME:NAME:SECONDS ...`.

It replaces the kernel's netem, which many kernels lack. Each argument is a link: two new TAP interfaces of the current
network namespace and the seconds that a frame takes from one to the other. Segmentation and checksums are left to the
receiving kernel (IFF_VNET_HDR with offloads), so a frame has up to 64 KiB: a gigabit is about 2,000 frames a second.

The first line of output says that the interfaces exist. The end of standard input ends the relay.
"""

import fcntl
import os
import selectors
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence

FRAME_BYTES = 10 + 18 + (1 << 16)  # virtio_net_hdr, Ethernet header with a VLAN tag, the largest IP packet
LATE_BYTES = 64 << 20  # frames of one direction beyond this many waiting bytes are dropped, as a full queue does

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0  # linux/if_tun.h
_TAP, _NO_PACKET_INFO, _VIRTIO_HEADER = 0x0002, 0x1000, 0x4000
_CHECKSUM, _TSO4, _TSO6 = 0x01, 0x02, 0x04


def open_tap(name: str) -> int:
    """Create the TAP interface `name`; return the descriptor of its frames, each behind a virtio_net_hdr."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP | _NO_PACKET_INFO | _VIRTIO_HEADER))
    fcntl.ioctl(tap, _TUNSETOFFLOAD, _CHECKSUM | _TSO4 | _TSO6)
    return tap


class Direction:
    """One direction of a link: frames of `source` are written to `target` after `latency_s` seconds, in order."""

    def __init__(self, source: int, target: int, latency_s: float) -> None:
        self._source, self._target, self._latency_s = source, target, latency_s
        self._waiting: deque[tuple[float, bytes]] = deque()  # (when due, frame)
        self._bytes = 0

    def read(self) -> None:
        """Take all frames that have arrived."""
        due = time.monotonic() + self._latency_s
        while (frame := _read(self._source)) is not None:
            if self._bytes + len(frame) <= LATE_BYTES:
                self._waiting.append((due, frame))
                self._bytes += len(frame)

    def write_due(self) -> float:
        """Write the frames that are due; return the seconds until the next one, or infinity."""
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            frame = self._waiting.popleft()[1]
            self._bytes -= len(frame)
            _write(self._target, frame)
        return self._waiting[0][0] - now if self._waiting else float("inf")


def _read(tap: int) -> bytes | None:
    try:
        return os.read(tap, FRAME_BYTES)
    except BlockingIOError:
        return None


def _write(tap: int, frame: bytes) -> None:
    try:
        os.write(tap, frame)
    except OSError:
        pass  # an interface that is not up yet, or whose queue is full, drops a frame; TCP sends it again


def relay(links: Sequence[tuple[int, int, float]], ends: int) -> None:
    """Relay frames between the TAP descriptors (a, b, seconds) of each link until `ends` has input or ends."""
    with selectors.DefaultSelector() as ready:
        ready.register(ends, selectors.EVENT_READ, None)
        directions = []
        for a, b, latency_s in links:
            for source, target in ((a, b), (b, a)):
                directions.append(Direction(source, target, latency_s))
                ready.register(source, selectors.EVENT_READ, directions[-1])
        while True:
            wait_s = min((each.write_due() for each in directions), default=float("inf"))
            for key, _ in ready.select(None if wait_s == float("inf") else max(0.0, wait_s)):
                if key.data is None:
                    return
                key.data.read()


def start(network: str, links: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Start the relay of `links`, as `main` takes them, in the network namespace at a path; it makes their interfaces.

    Raises:
        UserError: There is no /dev/net/tun here.
    """
    from fdt.errors import UserError

    popen = subprocess.Popen(
        ["nsenter", f"--net={network}", sys.executable, __file__, *links],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert popen.stdout is not None and popen.stderr is not None
    if popen.stdout.readline() != b"ready\n":
        reason = popen.stderr.read().decode(errors="replace").strip().splitlines()[-1:]
        raise UserError(f"--emulate needs /dev/net/tun for links with latency: {' '.join(reason)}")
    return popen


def main(ends: Sequence[str]) -> None:
    """Open the interfaces, say so, and relay."""
    links = []
    for end in ends:
        a, b, seconds = end.split(":")
        links.append((open_tap(a), open_tap(b), float(seconds)))
    print("ready", flush=True)
    relay(links, sys.stdin.fileno())


if __name__ == "__main__":
    main(sys.argv[1:])
