"""IP multicast with repair: the decisions over a network that loses pieces, and real datagrams on loopback."""

import contextlib
import random
import socket
import sys
import threading
from pathlib import Path

import numpy as np
import numpy.testing as npt
import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "parallel"))
import comm_contract
import keras
from in_process import trained

from fdt.errors import UserError
from hfdt import algorithms
from hfdt.collectives import ip_multicast, ip_rendezvous
from hfdt.collectives.datagrams import PacketId, Piece, ReportDatagram, Wire
from hfdt.collectives.repair import PIECE, ReceiverReport, Receiving, Sending
from tests.in_process_comm import on_ranks


# -- decisions ---------------------------------------------------------------------------------------------------------
def carried(nbytes, receivers, lose, late=()):
    """(what each received, pieces sent) of one packet; lose() says whether a datagram is lost, reports too.

    `late`: receivers that hear probes only, until the first. Time passes by a millisecond a turn.
    """
    data = random.Random(0).randbytes(nbytes)
    sending, into = Sending(nbytes, range(receivers), 0.0), [Receiving(nbytes) for _ in range(receivers)]
    joined, sent, now = set(range(receivers)) - set(late), 0, 0.0

    def arrive(receiver, number):
        if not lose() and into[receiver].take(number, data[number * PIECE : (number + 1) * PIECE]) and not lose():
            sending.receive_report(receiver, into[receiver].report(), now)

    while not sending.done:
        now += 0.001
        again, new = sending.due(now)
        sent += len(again) + len(new)
        for number in [*again, *new]:
            for receiver in joined:
                arrive(receiver, number)
        if now >= sending.probe_s:
            probe, behind = sending.probe(now), sending.behind
            joined.update(behind)
            for receiver in behind:
                arrive(receiver, probe)
        assert now < 600
    assert all(receiving.done and bytes(receiving.data) == data for receiving in into)
    return sent


def test_nothing_is_sent_twice_where_nothing_is_lost():
    for nbytes in (0, 1, PIECE, PIECE + 1, 1_000_000):
        assert carried(nbytes, 3, lambda: False) == max(1, -(-nbytes // PIECE))


@pytest.mark.parametrize("loss", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("nbytes", [10, 300_000])
def test_what_is_lost_is_repaired(loss, nbytes):
    draw = random.Random(1)
    sent = carried(nbytes, 4, lambda: draw.random() < loss)
    if nbytes > 10 and loss < 0.5:
        assert sent < 215 * (1 + 6 * loss) + 40  # about what four receivers have lost


def test_who_joins_late_is_told_by_a_probe():
    assert carried(100_000, 3, lambda: False, late=[2]) < 2 * 72 + 40


def test_the_window_follows_the_slowest_and_what_is_lost():
    sending = Sending(1000 * PIECE, [0, 1], 0.0)
    assert sending.due(0.0) == ([], list(range(32)))
    sending.receive_report(0, ReceiverReport(32), 0.001)
    assert sending.due(0.001) == ([], [])  # rank 1 has nothing yet
    sending.receive_report(1, ReceiverReport(10, ((10, 12), (20, 21))), 0.002)
    assert sending.window == 16
    assert sending.due(0.002) == ([10, 11, 20], [])
    sending.receive_report(1, ReceiverReport(10, ((10, 12),)), 0.003)  # on its way already
    assert sending.due(0.003) == ([], [])
    sending.receive_report(1, ReceiverReport(32), 0.02)
    assert sending.due(0.02) == ([], list(range(32, 49))) and sending.behind == [0, 1]


def test_datagrams_of_another_run_are_dropped():
    packet, wire = PacketId(0b1011, 3, 7), Wire(b"key")
    piece = wire.piece(packet, 2, 5000, memoryview(b"abc"))
    assert wire.open(memoryview(piece)) == Piece(packet, 2, 5000, memoryview(b"abc"))
    said = wire.report(packet, 1, ReceiverReport(4, ((5, 6), (8, 11))))
    assert wire.open(memoryview(said)) == ReportDatagram(packet, 1, ReceiverReport(4, ((5, 6), (8, 11))))
    assert Wire(b"another").open(memoryview(piece)) is None
    assert wire.open(memoryview(piece[:-1] + b"d")) is None and wire.open(memoryview(b"short")) is None


# -- loopback ----------------------------------------------------------------------------------------------------------
def multicasts_on_loopback():
    """Is a datagram to a group heard here?"""
    with ip_rendezvous.bound("127.0.0.1") as sender, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as heard:
        try:
            heard.bind(("239.1.2.3", 0))
            member = socket.inet_aton("239.1.2.3") + socket.inet_aton("127.0.0.1")
            heard.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
            heard.settimeout(5.0)
            sender.sendto(b"?", heard.getsockname())
            return heard.recv(1) == b"?"
        except OSError:
            return False


needs_multicast = pytest.mark.skipif(not multicasts_on_loopback(), reason="no multicast on loopback")


def among(size, work):
    """work(transport) on each rank; the ranks exchange in memory."""

    def rank(comm):
        with contextlib.closing(ip_rendezvous.meet(comm)) as air:
            result = work(air)
            comm.sum([np.zeros(1)], "all are done")
            return result

    return on_ranks(size, rank)


@needs_multicast
def test_contract():
    among(3, comm_contract.multicasts)


@needs_multicast
@pytest.mark.parametrize(
    ("n", "placement", "r"), [(4, "paper", 2), (4, "groups", 2), (3, "cyclic", 2), (3, "paper", 1)]
)
def test_coded_sums_over_it(n, placement, r):
    plan = algorithms.make(f"coded(placement={placement!r})").plan(n, r)
    draw = np.random.default_rng(0)
    blocks = [draw.normal(size=20_000).astype("float32") for _ in plan.owners]

    def total(air):
        own = {b: blocks[b].copy() for b, owners in enumerate(plan.owners) if air.rank in owners}
        return plan.total(own, air), air.sent_bytes

    plain = on_ranks(n, total)
    for (got, sent), (want, counted) in zip(among(n, total), plain, strict=True):
        npt.assert_array_equal(got, want)
        assert sent == counted == 4 * plan.sent_words(20_000)


@needs_multicast
def test_keras_trains_over_it():
    def model():
        keras.utils.set_random_seed(3)
        made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        made.compile(keras.optimizers.SGD(0.1), "mse")
        return made

    x = np.arange(80, dtype="float32").reshape(20, 4) / 80
    weights, _, _, sent = trained("coded(redundancy=2)", 3, model, x, x.sum(1), epochs=1, options={"multicast": "ip"})
    plain, _, _, counted = trained("coded(redundancy=2)", 3, model, x, x.sum(1), epochs=1)
    assert sent == counted
    for got, want in zip(weights, plain, strict=True):
        npt.assert_array_equal(got, want)


@needs_multicast
def test_what_the_network_loses_comes_again(monkeypatch):
    draw, lock, real = random.Random(3), threading.Lock(), Wire.open

    def lossy(wire, datagram):
        with lock:
            return None if draw.random() < 0.05 else real(wire, datagram)

    monkeypatch.setattr(Wire, "open", lossy)
    vector = np.arange(60_000, dtype=np.float32)

    def work(air):
        for root in range(3):
            npt.assert_array_equal(air.multicast(vector * (air.rank + 1), root, (0, 1, 2)), vector * (root + 1))
        return air.again_bytes

    assert sum(among(3, work)) > 0


@needs_multicast
def test_a_network_that_swallows_all_is_an_error(monkeypatch):
    monkeypatch.setattr(ip_multicast, "SILENCE_S", 0.3)
    monkeypatch.setattr(ip_multicast, "CLOSE_S", 0.1)
    monkeypatch.setattr(Wire, "open", lambda wire, datagram: None)

    def rank(comm):
        with contextlib.closing(ip_rendezvous.meet(comm)) as air:
            while True:
                air.multicast(np.ones(3), comm.rank, (0, 1, 2))

    with pytest.raises(
        UserError, match=r"for 0.3 s no multicast packet has arrived at rank .*; --multicast mpi needs no"
    ):
        on_ranks(3, rank)


def test_an_interface_that_is_not_there():
    with pytest.raises(UserError, match="this host has .*. Received: nowhere0"):
        ip_rendezvous.interface_address("nowhere0")
    assert ip_rendezvous.interface_address("lo") == "127.0.0.1"
