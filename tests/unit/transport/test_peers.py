"""The sockets of a node, for real on loopback: who may say what, and what happens when a peer is gone (P2, P4)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from tidings.admin.ports import free_address
from tidings.errors import InvalidRequest, Unauthorized, Unavailable
from tidings.settings import MIB, PeerSettings
from tidings.transport import curve
from tidings.transport.peers import FromClient, FromPeer, PeerSockets
from tidings.wire.peers import encode_header

DEADLINE_SECONDS = 60.0
NOBODY = "tcp://127.0.0.1:9"

Make = Callable[..., PeerSockets]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes sockets on free ports, and closes them."""
    made: list[PeerSockets] = []

    def make_one(life: int = 1, bind: str = "tcp://127.0.0.1:*", **settings: Any) -> PeerSockets:
        made.append(PeerSockets(PeerSettings(bind=bind, **settings), life))
        return made[-1]

    yield make_one
    for sockets in made:
        sockets.close()


class Stranger:
    """A bare DEALER that says whatever it likes."""

    def __init__(self, address: str, options: curve.ClientOptions | None = None) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 5_000
        if options is not None:
            options.apply(self.socket)
        self.socket.connect(address)

    def say(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    def close(self) -> None:
        self.socket.close()
        self.context.term()


@pytest.fixture
def knock() -> Iterator[Callable[[PeerSockets], Stranger]]:
    strangers: list[Stranger] = []

    def knock_at(sockets: PeerSockets) -> Stranger:
        strangers.append(Stranger(sockets.address))
        return strangers[-1]

    yield knock_at
    for stranger in strangers:
        stranger.close()


def arrivals(sockets: PeerSockets, count: int) -> list[FromPeer | FromClient]:
    """Waits for so many arrivals."""
    found: list[FromPeer | FromClient] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {found} has come, and {dict(sockets.refused)} was refused"
        sockets.wait(50)
        found += sockets.receive(100)
    return found


def losses(sockets: PeerSockets, count: int = 1) -> list[str]:
    """Waits until so many peers are lost."""
    found: list[str] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline, "nobody was lost"
        sockets.wait(50)
        found += sockets.lost()
    return found


def test_a_message_comes_with_the_name_of_its_sender(make: Make) -> None:
    alice, bob = make(), make()
    alice.send(0, [bob.address], b"one")
    alice.send(0, [bob.address], b"two")
    assert arrivals(bob, 2) == [FromPeer(alice.address, False, b"one"), FromPeer(alice.address, False, b"two")]
    assert alice.links == 1 and bob.links == 0
    assert not alice.refused and not bob.refused


def test_a_command_of_a_client_is_answered(make: Make) -> None:
    node = make()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    for kind in (zmq.DEALER, zmq.REQ):
        client = context.socket(kind)
        client.linger = 0
        client.connect(node.address)
        client.send(b"command")
        (arrival,) = arrivals(node, 1)
        assert isinstance(arrival, FromClient) and arrival.frame == b"command"
        node.answer(arrival.client, b"answer")
        assert client.poll(60_000) and client.recv() == b"answer"
        client.close()
    context.term()


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ((b"no header", b"message"), "no header of a node"),
        ((b"\xff" * 2_000, b"message"), "no header of a node"),
        ((encode_header("nonsense", 1), b"message"), "no header of a node"),
        ((encode_header("tcp://127.0.0.1:99999", 1), b"message"), "no header of a node"),
        ((b"one", b"two", b"three"), "neither a message nor a command"),
    ],
)
def test_what_is_no_message_is_counted_and_dropped(
    make: Make, knock: Callable[[PeerSockets], Stranger], frames: tuple[bytes, ...], reason: str
) -> None:
    node = make()
    stranger = knock(node)
    stranger.say(*frames)
    stranger.say(encode_header(NOBODY, 1), b"message")
    assert arrivals(node, 1) == [FromPeer(NOBODY, False, b"message")]
    assert node.refused == {reason: 1}


def test_one_connection_speaks_for_one_sender_and_nobody_for_ourselves(
    make: Make, knock: Callable[[PeerSockets], Stranger]
) -> None:
    node = make()
    liar, mimic = knock(node), knock(node)
    liar.say(encode_header("tcp://127.0.0.1:8001", 1), b"first")
    liar.say(encode_header("tcp://127.0.0.1:8002", 1), b"second")
    mimic.say(encode_header(node.address, 1), b"third")
    mimic.say(b"a command")
    found = arrivals(node, 2)
    assert [arrival.frame for arrival in found if isinstance(arrival, FromPeer)] == [b"first"]
    assert node.refused == {"a wrong sender": 2}


def test_a_frame_above_the_limit_never_arrives(make: Make, knock: Callable[[PeerSockets], Stranger]) -> None:
    node = make(frame_bytes_max=1_000)
    glutton, modest = knock(node), knock(node)
    glutton.say(encode_header("tcp://127.0.0.1:8001", 1), b"x" * 1_001)
    modest.say(encode_header("tcp://127.0.0.1:8002", 1), b"x" * 1_000)
    assert arrivals(node, 1) == [FromPeer("tcp://127.0.0.1:8002", False, b"x" * 1_000)]
    node.send(0, [NOBODY], b"x" * 1_001)
    assert node.refused == {"too large to send": 1} and node.links == 0


def test_a_new_life_of_a_peer_is_told_and_its_old_one_is_not_heard_any_more(
    make: Make, knock: Callable[[PeerSockets], Stranger]
) -> None:
    node = make()
    first, second, late = knock(node), knock(node), knock(node)
    first.say(encode_header(NOBODY, 5), b"first")
    assert arrivals(node, 1) == [FromPeer(NOBODY, False, b"first")]
    second.say(encode_header(NOBODY, 6), b"second")
    assert arrivals(node, 1) == [FromPeer(NOBODY, True, b"second")]
    second.say(encode_header(NOBODY, 6), b"third")
    assert arrivals(node, 1) == [FromPeer(NOBODY, False, b"third")]
    late.say(encode_header(NOBODY, 5), b"late")
    late.say(b"a command")
    assert [type(arrival) for arrival in arrivals(node, 1)] == [FromClient]
    assert node.refused == {"a sender that has ended": 1}


def test_a_new_life_gets_a_new_connection(make: Make, knock: Callable[[PeerSockets], Stranger]) -> None:
    node, peer = make(), make(life=5)
    peer.send(0, [node.address], b"hello")
    arrivals(node, 1)
    node.send(0, [peer.address], b"to the first life")
    assert node.links == 1
    knock(node).say(encode_header(peer.address, 6), b"hello again")
    assert arrivals(node, 1) == [FromPeer(peer.address, True, b"hello again")]
    assert node.links == 0


def test_a_peer_that_cannot_be_reached_is_lost(make: Make) -> None:
    node = make()
    node.send(0, [NOBODY], b"hello")
    assert losses(node) == [NOBODY]
    assert node.links == 0 and node.lost() == []


def test_a_peer_that_ends_is_lost_and_may_come_back(make: Make) -> None:
    node = make()
    peer = PeerSockets(PeerSettings(bind="tcp://127.0.0.1:*"), 1)
    node.send(0, [peer.address], b"hello")
    arrivals(peer, 1)
    address = peer.address
    peer.close()
    assert losses(node) == [address]
    again = make(life=2, bind=address)
    node.send(0, [address], b"hello again")
    assert arrivals(again, 1) == [FromPeer(node.address, False, b"hello again")]


@pytest.mark.parametrize(
    "address", ["nonsense", "tcp://127.0.0.1", "ipc:///tmp/x", "tcp://192.0.2.1:7500", "tcp://*:1"]
)
def test_an_address_that_may_not_be_called_is_lost_at_once(make: Make, address: str) -> None:
    """Without keys no other machine is spoken to, whatever a peer says about it."""
    node = make()
    node.send(0, [address], b"hello")
    assert node.lost() == [address] and node.links == 0
    assert node.refused == {"an address that may not be called": 1}


def test_connections_are_bounded_and_the_oldest_goes(make: Make) -> None:
    node, peers = make(links_max=2), [make() for _ in range(4)]
    for peer in peers:
        node.send(0, [peer.address], b"hello")
        assert node.links <= 2
    for peer in peers:
        assert arrivals(peer, 1) == [FromPeer(node.address, False, b"hello")]
    assert node.lost() == []  # They were closed in good order: nobody is gone.


def test_an_idle_connection_is_closed(make: Make) -> None:
    node, one, other = make(idle_ms=1_000), make(), make()
    node.send(0, [one.address, other.address], b"hello")
    node.send(900, [one.address], b"hello")
    node.tend(1_000)
    assert node.links == 2
    node.tend(1_001)
    assert node.links == 1
    node.tend(1_901)
    assert node.links == 0 and node.lost() == []
    assert len(arrivals(one, 2)) == 2 and len(arrivals(other, 1)) == 1


def test_a_full_queue_loses_messages_and_says_so(make: Make) -> None:
    node = make(queued_messages_max=1)
    peer = make(queued_messages_max=1)
    for _ in range(20_000):
        node.send(0, [peer.address], b"x" * 1_000)
        if node.refused:
            break
    assert list(node.refused) == ["the peer's queue is full"]


def test_what_is_queued_on_a_broken_connection_does_not_hold_up_the_end() -> None:
    """libzmq gives such a connection up when the socket is next used, and waits for its queue by the linger of that
    moment, not by that of a later close."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    deaf = context.socket(zmq.ROUTER)
    deaf.rcvhwm = 1
    address = f"tcp://127.0.0.1:{deaf.bind_to_random_port('tcp://127.0.0.1')}"
    node = PeerSockets(PeerSettings(bind="tcp://127.0.0.1:*"), 1)
    for _ in range(32):
        node.send(0, [address], bytes(MIB))  # Far more than the kernel's buffers hold.
    assert deaf.poll(DEADLINE_SECONDS * 1_000)
    deaf.close(linger=0)
    context.term()
    assert node._links[address].monitor.poll(DEADLINE_SECONDS * 1_000)
    node.send(0, [address], b"more")
    end = threading.Thread(target=node.close, daemon=True)
    end.start()
    end.join(DEADLINE_SECONDS)
    assert not end.is_alive()


def test_waking_sockets_that_have_been_closed_does_nothing() -> None:
    """A node may end by itself between the wish to stop it and the wake."""
    node = PeerSockets(PeerSettings(bind="tcp://127.0.0.1:*"), 1)
    node.close()
    innocent = os.pipe()  # They get the numbers that were free.
    os.set_blocking(innocent[0], False)
    try:
        node.wake()
        with pytest.raises(BlockingIOError):
            os.read(innocent[0], 1)
    finally:
        for descriptor in innocent:
            os.close(descriptor)


def test_senders_that_are_remembered_are_bounded(make: Make, knock: Callable[[PeerSockets], Stranger]) -> None:
    node = make(senders_max=3)
    for port in range(1, 9):
        knock(node).say(encode_header(f"tcp://127.0.0.1:{port}", 1), b"hello")
    arrivals(node, 8)
    assert len(node._lives) <= 3 and len(node._speakers) <= 3


def test_an_address_in_use_is_said(make: Make) -> None:
    first = make()
    with pytest.raises(Unavailable, match="already in use"):
        PeerSockets(PeerSettings(bind=first.address), 1)


def test_beyond_loopback_keys_are_needed(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="without keys"):
        PeerSockets(PeerSettings(bind="tcp://*:*"), 1)
    curve.create_server_keys(tmp_path)
    with pytest.raises(InvalidRequest, match="--address"):
        PeerSockets(PeerSettings(bind="tcp://*:*", keys=str(tmp_path)), 1)


def test_with_keys_a_node_speaks_only_under_its_own_name(make: Make, tmp_path: Path) -> None:
    curve.create_server_keys(tmp_path)
    first, second, third = free_address(), free_address(), free_address()
    for name in (first, second, "mallory"):
        curve.create_client_keys(tmp_path, name)
    alice, bob = make(bind=first, keys=str(tmp_path)), make(bind=second, keys=str(tmp_path))
    alice.send(0, [second], b"hello")
    assert arrivals(bob, 1) == [FromPeer(first, False, b"hello")]
    with pytest.raises(InvalidRequest, match="no key file"):
        make(bind=third, keys=str(tmp_path))

    mallory = Stranger(second, curve.client_options(tmp_path, "mallory"))
    mallory.say(encode_header(first, 1), b"I am Alice")
    mallory.say(b"a command")
    assert [arrival.frame for arrival in arrivals(bob, 1)] == [b"a command"]
    assert bob.refused == {"a sender with another's key": 1}
    mallory.close()


def test_a_node_without_the_right_key_is_not_let_in(make: Make, tmp_path: Path) -> None:
    curve.create_server_keys(tmp_path)
    address = free_address()
    curve.create_client_keys(tmp_path, address)
    guarded, bare = make(bind=address, keys=str(tmp_path)), make()
    bare.send(0, [guarded.address], b"hello")
    assert losses(bare) == [guarded.address]
    assert list(guarded.receive(10)) == []


def test_others_must_not_read_the_key(tmp_path: Path) -> None:
    curve.create_server_keys(tmp_path)
    address = free_address()
    curve.create_client_keys(tmp_path, address)
    curve.secret_file(tmp_path, address).chmod(0o644)
    with pytest.raises(Unauthorized):
        PeerSockets(PeerSettings(bind=address, keys=str(tmp_path)), 1)
