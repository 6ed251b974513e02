"""The rendezvous of IP multicast: ranks exchange addresses and a key through the all-reduce that they have already."""

import fcntl
import secrets
import socket
import struct
import zlib

import numpy as np
import tensorflow as tf

from fdt.errors import UserError
from hfdt.collectives.base import Comm
from hfdt.collectives.ip_multicast import BUFFER, IpMulticast

LOOPBACK = "127.0.0.1"
KEY_WORDS = 4  # of 62 bits
_SIOCGIFADDR = 0x8915  # linux/sockios.h


def meet(comm: Comm, interface: str = "") -> IpMulticast:
    """Make the IP multicast transport of this rank. A collective.

    Args:
        comm: The collectives of the run.
        interface: The network interface on all ranks' hosts; "" is loopback on one host, else the interface of the
            route for multicasts.

    Raises:
        UserError: There is no such interface or no route.
    """
    address = interface_address(interface) if interface else LOOPBACK if _on_one_host(comm) else _default_address()
    own = bound(address)
    table = np.zeros([comm.size, 2], np.int64)
    table[comm.rank] = int.from_bytes(socket.inet_aton(address), "big"), own.getsockname()[1]
    words = [secrets.randbits(62) if comm.rank == 0 else 0 for _ in range(KEY_WORDS)]
    table, key = (np.asarray(t) for t in comm.sum([tf.constant(table), tf.constant(words, tf.int64)], "hfdt.multicast"))
    addresses = [(socket.inet_ntoa(int(ip).to_bytes(4, "big")), int(port)) for ip, port in table]
    return IpMulticast(comm.rank, addresses, own, key.tobytes())


def bound(address: str, port: int = 0) -> socket.socket:
    """Return a UDP socket that multicasts through the interface of `address`, to its network and to this host."""
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    own.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
    own.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
    own.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
    own.bind((address, port))
    return own


def interface_address(interface: str) -> str:
    """Return the interface's IPv4 address. Raises UserError for an interface without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            found = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError as error:
            known = ", ".join(name for _, name in socket.if_nameindex())
            raise UserError(
                f"--multicast ip:INTERFACE must name an interface with an IPv4 address; this host has {known}. "
                f"Received: {interface} ({error.strerror})"
            ) from None
    return socket.inet_ntoa(found[20:24])


def _on_one_host(comm: Comm) -> bool:
    names = np.zeros(comm.size, np.int64)
    names[comm.rank] = zlib.crc32(socket.gethostname().encode())
    return len(set(np.asarray(comm.sum([tf.constant(names)], "hfdt.multicast.hosts")[0]))) == 1


def _default_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("239.0.0.1", 9))  # sends nothing: selects a route
        except OSError as error:
            raise UserError(
                f"--multicast ip needs a route for multicasts: {error.strerror}; --multicast ip:INTERFACE names an "
                "interface instead"
            ) from None
        return str(asked.getsockname()[0])
