"""Programs of control peers: their results, their simulated time, and the errors of programs that cannot end."""

import errno
import queue
import re
import signal
import socket
import struct
import sys
import threading
from collections import deque
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
import numpy as np
import numpy.testing as npt
import pytest
from click.testing import CliRunner

from fdt import tensors
from fdt.errors import UserError
from fdt.network import Cluster, NetworkLink, NodeGroup, Speed
from fdt.security.auth import TOKEN_VARIABLE
from fdt.service.member import ENGINE_VARIABLE
from fdt.signals import Ended
from nfdt import control
from nfdt.cli import main
from nfdt.control import emulated, host
from nfdt.control.command import _print_summary
from nfdt.control.host import PeerHost
from nfdt.control.peer import Store
from nfdt.control.simulated import Peers

EXAMPLES = Path(__file__).parents[2] / "examples" / "control"


def run(name, *words, cluster=None):
    """(output, the peers) of an example, on its own cluster where no other is named."""
    argv = [
        "control",
        str(EXAMPLES / f"{name}.py"),
        "--cluster",
        str(EXAMPLES / f"{cluster or name}.yaml"),
        "--",
        *words,
    ]
    result = CliRunner().invoke(main, argv)
    assert result.exit_code == 0, result.output
    return result.output, control.peers


@pytest.fixture(autouse=True)
def one_program():
    yield
    control.run_with(None)
    sys.modules.pop("softmax", None)
    sys.modules.pop("small_keras", None)


@pytest.fixture
def softmax(monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import softmax

    return softmax


def alone(softmax, steps):
    w = softmax.start()
    for _ in range(steps):
        w = softmax.step(w, softmax.gradient(w, softmax.x, softmax.targets))
    return w


def test_ring_all_reduce_is_sgd_on_all_data(softmax):
    output, peers = run("ring", "--steps", "5")
    for peer in peers:
        npt.assert_allclose(peer.read("w"), alone(softmax, 5), atol=1e-12)
    # 650 float64 in 4 parts: 163 at most (2 parts), 162 otherwise; each round waits for the largest.
    low, high = (5 * (0.02 + 6 * (count * 8 / 1.25e6 + 1e-3)) for count in (162, 163))
    assert low <= peers.now_s <= high + 1e-9
    assert peers.bytes_sent == 5 * 6 * 650 * 8
    assert f"accuracy {softmax.accuracy(alone(softmax, 5)):.4f}" in output


def test_tree_all_reduce_is_sgd_on_all_data(softmax):
    _, peers = run("tree", "--steps", "3")
    for peer in peers:
        npt.assert_allclose(peer.read("w"), alone(softmax, 3), atol=1e-12)
    hop = 650 * 8 / 1.25e6 + 1e-3  # two children have a link each, and one multicast serves both
    assert peers.now_s == pytest.approx(3 * (0.02 + 4 * hop))


def test_hierarchical_averaging_learns(softmax):
    output, peers = run("hierarchy", "--rounds", "4")
    found = [float(value) for value in re.findall(r"accuracy ([\d.]+)", output)]
    assert len(found) == 4 and found[-1] > 0.85 and found[-1] > found[0]
    carried = peers.links
    assert carried["phone-0 up"] == 4 * 2 * 5200 and carried["edge-1 up"] == 4 * 5200


def test_peers_train_a_keras_model_over_links_one_by_one(softmax):
    _, peers = run("federated", "--rounds", "1", cluster="links")
    import small_keras

    shares = [softmax.share(number, 5) for number in range(5)]
    expected = small_keras.mean(*(small_keras.train(small_keras.start(), *share) for share in shares))
    for peer in peers:
        for one, other in zip(peer.read("w"), expected, strict=True):
            npt.assert_allclose(one, other, atol=1e-6)
    assert peers.links["west--east up"] == 0 < peers.links["west--c up"]  # the way round has less latency


def fail(error):
    raise error


def pair(**link):
    return Peers(Cluster((NodeGroup("n", 2, Speed(2.0)),), step_s=1.0, link=NetworkLink(**link)))


def test_commands_are_carried_out_in_order_and_links_take_time():
    peers = pair(bandwidth=80.0, latency_s=0.25)
    a, b = peers
    a.compute("t", lambda: np.ones(10))  # 0.5 s
    sent = a.send(b, "t", into="from a")
    a.compute("t", lambda t: t + 1, "t", steps=4)  # 2 s, while the tensor travels
    assert not sent.done and peers.now_s == 0
    sent.wait()
    assert peers.now_s == pytest.approx(0.5 + 1.0 + 2 * 0.25)  # two links
    b.wait("from a")
    npt.assert_array_equal(b.read("from a"), np.ones(10))
    npt.assert_array_equal(a.read("t"), np.full(10, 2.0))
    assert peers.now_s == pytest.approx(2.5)


@pytest.mark.parametrize("multicast", [False, True])
def test_a_tensor_for_nobody_is_there_at_once(multicast):
    peers = Peers(Cluster((NodeGroup("n", 1),), "tree", link=NetworkLink(1.0), multicast=multicast))
    peers[0].compute("t", lambda: np.ones(3), steps=0)
    peers[0].send(peers[0].below, "t").wait()
    assert (peers.bytes_sent, peers.now_s) == (0, 0)


def test_the_first_of_several():
    peers = Peers(Cluster((NodeGroup("slow", 1, Speed(0.5)), NodeGroup("fast", 1)), step_s=1.0))
    acks = [peer.compute("t", lambda: np.zeros(1)) for peer in peers]
    assert peers.first(*acks) is acks[1]
    assert peers.now_s == 1.0


def test_tensors_that_come_early_are_kept_in_order():
    a, b = peers = pair()
    for value in (1.0, 2.0):
        a.compute("t", lambda value=value: np.array(value), steps=0)
        a.send(b, "t")
    b.wait("t")
    b.compute("first", lambda t: t, "t", steps=0)
    b.wait("t")
    peers.wait()
    assert (b.read("first"), b.read("t")) == (1.0, 2.0)


def test_tensors_cannot_be_written():
    a, _ = pair()
    a.compute("t", lambda: np.zeros(2), steps=0)
    with pytest.raises(ValueError, match="read-only"):
        a.read("t")[0] = 1


def test_what_cannot_end_is_said():
    a, _ = peers = pair()
    a.wait("nothing")
    with pytest.raises(UserError, match="`n-0: wait for nothing` never ends"):
        peers.wait()
    with pytest.raises(UserError, match="it has none"):
        pair()[0].read("w")


@pytest.mark.parametrize("result", [None, 1.0, np.ones(3), (np.ones(2),), {"x": np.ones(2), "y": np.ones(2)}])
def test_several_names_need_as_many_results(result):
    received = 3 if isinstance(result, np.ndarray) else 1
    said = f"the function must return 2 values, for a, b. Received: {received}"
    peer, _ = peers = pair()
    peer.compute(("a", "b"), lambda: result)
    with pytest.raises(UserError, match=re.escape(f"`n-0: compute ('a', 'b')` failed: {said}")):
        peers.wait()
    control_program = SimpleNamespace(commands=queue.SimpleQueue(), answers=queue.SimpleQueue())
    connection = SimpleNamespace(recv_bytes=control_program.commands.get, send_bytes=control_program.answers.put)
    threading.Thread(target=PeerHost(connection, b"", None).run, daemon=True).start()
    arguments = cloudpickle.dumps((["a", "b"], lambda: result, (), 1.0))
    control_program.commands.put(cloudpickle.dumps((7, "compute", arguments)))
    number, packed, error, traceback = cloudpickle.loads(control_program.answers.get(timeout=20))
    assert (number, cloudpickle.loads(packed), error, traceback) == (7, None, said, "")


@pytest.mark.parametrize("steps", [float("nan"), float("inf"), -1])
def test_a_duration_is_a_finite_number(steps):
    peer, _ = pair()
    with pytest.raises(UserError, match="steps must be a finite number, 0 or more. Received: "):
        peer.compute("t", lambda: np.ones(1), steps=steps)


def test_a_time_that_is_no_number_is_an_error():
    peer, _ = peers = Peers(Cluster((NodeGroup("n", 2),), step_s=1e308))
    peer.compute("t", lambda: np.ones(1), steps=10)
    peers.wait()
    with pytest.raises(UserError, match="the simulated time is too long"):
        peers.now_s  # noqa: B018


def test_a_function_does_not_end_the_program():
    peer, _ = peers = pair()
    peer.compute("t", lambda: sys.exit(0))
    with pytest.raises(
        UserError, match=re.escape("`n-0: compute t` failed: the function ends the program, by sys.exit(0)")
    ):
        peers.wait()


def test_the_first_of_none_is_an_error():
    with pytest.raises(UserError, match="peers.first needs one acknowledgement or more"):
        pair().first()


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (np.ones(2), "the connection to 127.0.0.1 ended: ConnectionRefusedError"),
        (np.array(["2026-11-26"], "M8[D]"), "links take arrays of numbers only. Received: datetime64[D] in t"),
        ({"name": "w"}, "links take arrays of numbers only. Received: str32 in t"),
        ([np.ma.array([1.0, 2.0], mask=[0, 1])], "links take arrays of numbers only. Received: MaskedArray in t"),
        (np.zeros((1, 1)).view(np.matrix), "links take arrays of numbers only. Received: matrix in t"),
    ],
)
def test_a_tensor_that_cannot_be_sent_is_an_error(monkeypatch, tensor, said):
    monkeypatch.setattr(host, "CONNECT_S", 0.0)
    answers = queue.SimpleQueue()
    peer = PeerHost(SimpleNamespace(send_bytes=answers.put), b"key", None)
    peer.compute(1, "t", lambda: tensor, (), 0)
    cloudpickle.loads(answers.get())
    try:
        peer.send(2, ["127.0.0.1"], "t", "t")
        number, _, error, _ = cloudpickle.loads(answers.get(timeout=20))
        assert number == 2
    except UserError as refused:
        error = str(refused)
    assert error.startswith(said)
    if said.startswith("links"):
        sender, receiver = peers = pair()
        sender.compute("t", lambda: tensor)
        sender.send(receiver, "t")
        with pytest.raises(UserError, match=re.escape(f"`n-0: send t` failed: {said}")):
            peers.wait()


@pytest.mark.parametrize(("tensor", "nbytes"), [(3.0, 8), ([1.0] * 10, 80), ({"w": np.ones(3), "n": 2}, 32), (None, 0)])
def test_numbers_of_python_cross_links_as_arrays(tensor, nbytes):
    a, b = peers = pair(bandwidth=8.0)
    a.compute("t", lambda: tensor, steps=0)
    a.send(b, "t").wait()
    assert (peers.bytes_sent, peers.links["n-0 up"], peers.now_s) == (nbytes, nbytes, nbytes / 8)


def test_a_tensor_for_its_sender_crosses_no_link():
    a, b = peers = pair()
    a.compute("t", lambda: np.ones(2), steps=0)
    a.send([a, b], "t").wait()
    assert (peers.bytes_sent, peers.links["n-0 up"]) == (16, 16)


class Odd(Exception):
    """An exception that cannot be made of its `args`, as simpy would."""

    def __init__(self, one, other):
        super().__init__(f"{one} {other}")


@pytest.mark.parametrize("error", [Ended(signal.SIGTERM), KeyboardInterrupt(), Odd("a", "b")])
@pytest.mark.parametrize("where", ["function", "delivery"])
def test_an_exception_ends_the_simulation_as_it_is(error, where, monkeypatch):
    a, b = peers = pair()
    monkeypatch.setattr(Store, "deliver", lambda *_: fail(error))
    a.compute("t", lambda: fail(error) if where == "function" else np.ones(1))
    a.send(b, "t")
    for _ in range(2):  # a program that catches it cannot go on with half a simulation
        with pytest.raises(type(error)) as raised:
            peers.wait()
        assert raised.value is error


def test_the_summary_has_the_time_before_the_links_are_read(capsys):
    class Slow(list):
        now_s = 1.0

        @property
        def links(self):
            self.now_s = 2.0
            return {"n-0 up": 5}

        @property
        def bytes_sent(self):
            return sum(self.links.values())

    _print_summary(Slow([1]), "emulated", 3.0)
    assert "nfdt: emulated:    1 s\n" in capsys.readouterr().err


class MeetingDeque(deque):
    """A deque from which two threads take elements before one of them continues."""

    both = threading.Barrier(2)

    def popleft(self):
        taken = super().popleft()
        self.both.wait(20)
        return taken

    def pop(self):
        taken = super().pop()
        self.both.wait(20)
        return taken


@pytest.mark.parametrize("error", ["", "broken"])
def test_a_tensor_for_two_receivers_has_one_answer(monkeypatch, error):
    outcomes, answers = [], queue.SimpleQueue()
    monkeypatch.setattr(host, "deque", MeetingDeque)
    monkeypatch.setattr(host, "Outbox", lambda *_: SimpleNamespace(put=lambda message, done: outcomes.append(done)))
    peer = PeerHost(SimpleNamespace(send_bytes=answers.put), b"key", None)
    peer.compute(1, "t", lambda: np.ones(1), (), 0)
    answers.get()
    peer.send(2, ["one", "other"], "t", "t")
    threads = [threading.Thread(target=done, args=(error,)) for done in outcomes]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    number, _, received, _ = cloudpickle.loads(answers.get())
    assert (number, received, answers.empty()) == (2, error, True)


def attach(address, key, rank):
    """A peer's connection to the control program."""
    connection = Client(address, "AF_UNIX", authkey=key)
    connection.send_bytes(str(rank).encode())
    return connection


class FakeLauncher:
    """Starts no process: the first caller is silent, peer 1 attaches."""

    def __init__(self, *_, **more):
        self.connections = []

    def start(self, task):
        address = task.env[ENGINE_VARIABLE].removeprefix("unix:")
        silent = socket.socket(socket.AF_UNIX)
        silent.connect(address)
        key = task.env[TOKEN_VARIABLE].encode()
        self.connections.append(silent)
        threading.Thread(target=lambda: self.connections.append(attach(address, key, 1)), daemon=True).start()
        return SimpleNamespace(exits=list, stopped=list, stop=lambda: None, launcher=self)


@pytest.mark.timeout(120)
def test_a_peer_that_does_not_attach_is_the_only_one_that_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(emulated, "START_S", 3.0)
    monkeypatch.setattr(emulated, "EmulatedNetwork", lambda _: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(emulated, "EmulatedLauncher", FakeLauncher)
    with pytest.raises(UserError, match="not all peers started within 3 s. Missing: n-0$"):
        emulated.EmulatedPeers(Cluster((NodeGroup("n", 2),)), tmp_path / "cluster.yaml", tmp_path, 0, tmp_path)


def test_several_results():
    peer, _ = pair()
    peer.compute(["a", "b"], lambda: (np.ones(2), [np.zeros(3)]))
    npt.assert_array_equal(peer.read("a"), np.ones(2))
    npt.assert_array_equal(peer.read("b"), [np.zeros(3)])


def test_programs_need_peers():
    with pytest.raises(UserError, match="nfdt control"):
        control.peers  # noqa: B018


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["control", "SCRIPT"], "Missing option '--cluster'"),
        (["control", "SCRIPT", "--steps", "3"], "Received: --steps; the script's own arguments stand after --;"),
        (["control", "SCRIPT", "other.py", "--cluster", "YAML"], "needs one script"),
        (["control", "SCRIPT", "--cluster", "YAML"], "neither join nor leave. Received: n, which joins"),
        (
            ["simulate", "SCRIPT", "--cluster", "YAML", "--workers", "3"],
            "--workers must be 2, as in the cluster, or left out. Received: 3",
        ),
        (["simulate", "SCRIPT", "--compare", "asgd"], "two algorithms or more"),
        (["simulate", "SCRIPT", "--compare", "asgd,ssgd", "--algorithm", "asgd"], "--compare names the algorithms"),
        (["simulate", "SCRIPT", "--compare", "asgd,ssgd", "--log-dir", "out"], "Received: --log-dir out too"),
    ],
)
def test_mistakes_on_the_command_line(tmp_path, argv, said):
    script, cluster = tmp_path / "program.py", tmp_path / "cluster.yaml"
    script.write_text("")
    cluster.write_text("nodes: [{name: n, count: 2, joins: 1 s}]")
    known = {"SCRIPT": str(script), "YAML": str(cluster)}
    result = CliRunner().invoke(main, [known.get(word, word) for word in argv])
    assert said in result.output and result.exit_code == 2 and "Traceback" not in result.output


@pytest.mark.timeout(120)  # a peer that waits for a caller's key accepts no other
def test_callers_without_the_key_hold_up_no_peer(monkeypatch):
    addresses = queue.SimpleQueue()

    def on_a_free_port(address, *words, **more):
        listener = Listener((address[0], 0), *words, **more)
        addresses.put(listener.address)
        failures = [OSError(errno.EMFILE, "no descriptor is left")]
        return SimpleNamespace(accept=lambda: listener.accept() if not failures else fail(failures.pop()))

    monkeypatch.setattr(host, "Listener", on_a_free_port)
    monkeypatch.setattr(host, "KEY_S", 5)
    peer = PeerHost(SimpleNamespace(), b"key", None)
    threading.Thread(target=peer.listen, args=("127.0.0.1",), daemon=True).start()
    address = addresses.get()
    with socket.create_connection(address) as silent, socket.create_connection(address) as huge:
        huge.sendall(struct.pack("!iQ", -1, 1 << 40) + b"x" * 1000)  # the header of a message of 10^12 bytes
        with pytest.raises(AuthenticationError):
            Client(address, authkey=b"wrong")
        for noise in (b"", b"t", b"t\n{}\nx", b'"t"\n{\nx', b'"t"\n[0]\n' + bytes(100)):
            with Client(address, authkey=b"key") as caller:
                caller.send_bytes(noise)
                with pytest.raises((EOFError, OSError)):
                    caller.recv_bytes()
        with Client(address, authkey=b"key") as honest:
            skeleton, leaves = tensors.flatten(np.ones(2))
            honest.send_bytes(f'"t"\n{skeleton}\n'.encode() + bytes(tensors.pack(leaves)))
            assert honest.recv_bytes() == b"came"
            silent.settimeout(60)
            while silent.recv(1000):  # the challenge, until the peer ends the connection
                pass
            honest.send_bytes(f'"t"\n{skeleton}\n'.encode() + bytes(tensors.pack(leaves)))
            assert honest.recv_bytes() == b"came"  # later than KEY_S after its connection
