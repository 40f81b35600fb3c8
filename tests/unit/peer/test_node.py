"""Nodes in threads of this process, over real sockets: bad frames, dead peers, new lives and goodbyes (P1, P9)."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec
import pytest
import zmq

from tidings.errors import InvalidTopic, NotSubscribed, ProtocolError, Unavailable
from tidings.peer.caller import NodeCaller
from tidings.peer.drive import Driver, wait_until
from tidings.peer.node import PeerNode
from tidings.peer.stacks import LayerSettings
from tidings.protocols.chord import key_of
from tidings.protocols.chord.messages import Hop
from tidings.settings import ChordSettings, HeartbeatSettings, HyParViewSettings, PeerSettings, ScribeSettings
from tidings.wire.codec import encode
from tidings.wire.peers import encode_header

Overlay = Literal["chord", "hyparview"]

# Anyone who dies closes its connections, which is noticed at once; a thread that has to wait for a processor is not
# dead.
HASTY = LayerSettings(
    chord=ChordSettings(stabilise_ms=50, fix_fingers_ms=50, join_ms=300, query_ms=2_000, query_tries=30),
    scribe=ScribeSettings(beat_ms=100, retry_ms=300),
    hyparview=HyParViewSettings(repair_ms=200, answer_ms=500),
    heartbeat=HeartbeatSettings(beat_ms=200, silence_ms_max=2_000),
)


class Host:
    """Runs nodes in threads, and ends them."""

    def __init__(self, overlay: Overlay) -> None:
        self.overlay: Overlay = overlay
        self.nodes: dict[str, tuple[PeerNode, threading.Thread]] = {}
        self._callers: list[NodeCaller] = []

    def start(self, join: str | None = None, bind: str = "tcp://127.0.0.1:*", **settings: Any) -> NodeCaller:
        contacts = (join,) if join else ()
        node = PeerNode(PeerSettings(bind=bind, overlay=self.overlay, join=contacts, **settings), HASTY)
        thread = threading.Thread(target=node.run, daemon=True)
        self.nodes[node.address] = (node, thread)
        thread.start()
        caller = NodeCaller(node.address, timeout=60.0)
        self._callers.append(caller)
        return caller

    def three(self) -> list[NodeCaller]:
        first = self.start()
        nodes = [first, self.start(first.address), self.start(first.address)]
        wait_until(lambda: all(knows(node, 2) for node in nodes), "all know each other")
        return nodes

    def stop(self, address: str) -> None:
        node, thread = self.nodes.pop(address)
        node.stop()
        thread.join(30.0)
        frame = sys._current_frames().get(thread.ident or 0)
        where = "".join(traceback.format_stack(frame)) if frame is not None else ""
        assert not thread.is_alive(), f"it does not end, and is at\n{where}"

    def close(self) -> None:
        for caller in self._callers:
            caller.close()
        for address in list(self.nodes):
            self.stop(address)


def knows(node: NodeCaller, count: int) -> bool:
    """Whether a node has joined and has so many neighbours."""
    view = node.look()
    neighbours = view.ring.successors if view.ring is not None else view.views.active if view.views is not None else ()
    return view.joined and len(neighbours) == count


@pytest.fixture(params=["chord", "hyparview"])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    found = Host(request.param)
    yield found
    found.close()


@pytest.fixture
def ring() -> Iterator[Host]:
    found = Host("chord")
    yield found
    found.close()


def test_each_subscriber_gets_each_message_once(host: Host) -> None:
    nodes = host.three()
    with Driver([node.address for node in nodes]) as driver:
        for node in driver.callers:
            driver.subscribe(node, "news")
        driver.wait_until_ready()
        for _ in range(5):
            for node in driver.callers:
                driver.publish(node, "news")
        driver.drain()
        accounts = driver.account()
    assert [(account.owed, account.missing, account.doubled, account.received) for account in accounts] == [
        (15, 0, 0, 15)
    ] * 3


def test_only_subscribers_deliver(host: Host) -> None:
    first, second, third = host.three()
    first.subscribe("news")
    second.subscribe("sport")
    wait_until(lambda: first.look().subscriptions == {"news": True}, "news is subscribed")
    wait_until(lambda: second.look().subscriptions == {"sport": True}, "sport is subscribed")
    third.publish("news", "hello")
    third.publish("sport", "goal")
    wait_until(lambda: first.look().arrived == second.look().arrived == 1, "both have theirs")
    assert [text.text for text in first.take()] == ["hello"]
    assert [(text.topic, text.publisher, text.text) for text in second.take()] == [("sport", third.address, "goal")]
    assert third.take() == []
    first.unsubscribe("news")
    assert first.look().subscriptions == {}
    with pytest.raises(NotSubscribed):
        first.unsubscribe("news")
    with pytest.raises(InvalidTopic):
        first.publish("", "hello")


def test_many_large_messages_at_once_are_cut_into_what_a_frame_holds(host: Host) -> None:
    """Those of a node that is still alone pile up, and leave together."""
    first = host.start()
    text = "x" * 40_000
    first.subscribe("news")
    for _ in range(60):
        first.publish("news", text)
    second = host.start(first.address)
    wait_until(lambda: knows(first, 1) and knows(second, 1), "both have met")
    wait_until(lambda: first.look().subscriptions == {"news": True}, "it is subscribed")
    for _ in range(60):
        second.publish("news", text)
    wait_until(lambda: first.look().waiting == second.look().waiting == 0, "the owner has taken all of it")
    wait_until(lambda: first.look().arrived >= 60, "it has arrived")
    assert {arrived.text for arrived in first.take()} == {text}
    assert first.look().refused == {}


def shouts(message: bytes, address: str, sender: str = "tcp://127.0.0.1:9") -> Callable[[], None]:
    """Says something to a node as if a node had said it."""

    def shout() -> None:
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.linger = 5_000
            socket.connect(address)
            socket.send_multipart([encode_header(sender, 1), message])

    return shout


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xc1",
        b"\x92\xa4Beat",
        encode(["Unheard", 1]),
        encode(["Hop", 1, 2, 3]),
        encode(Hop(1, 77, key_of("news"), "tcp://127.0.0.1:9", 0, 0, False, b"")),
        encode(Hop(1, 0, b"short", "tcp://127.0.0.1:9", 0, 0, False, b"")),
        encode([[]]) * 100,
    ],
)
def test_a_message_that_cannot_be_read_is_counted_and_the_node_goes_on(host: Host, message: bytes) -> None:
    node = host.start()
    shouts(message, node.address)()
    wait_until(lambda: bool(node.look().refused), "it is counted")
    assert node.look().refused == {"a message that cannot be read": 1}


def test_a_peer_that_ends_is_noticed_at_once_and_a_new_life_joins(host: Host) -> None:
    """Far sooner than by beats or questions: the connection tells."""
    first, second, third = host.three()
    life = third.look().life
    host.stop(third.address)
    wait_until(lambda: knows(first, 1) and knows(second, 1), "the others know each other alone")
    again = host.start(first.address, bind=third.address)
    wait_until(lambda: all(knows(node, 2) for node in (first, second, again)), "all know each other again")
    assert again.look().life > life


def test_a_contact_that_is_not_there_is_tried_again(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
    contact = f"tcp://127.0.0.1:{port}"
    node = host.start(join=contact)
    wait_until(lambda: "no answer from" in caplog.text, "it says so")
    assert not node.look().joined
    first = host.start(bind=contact)
    wait_until(lambda: knows(node, 1) and knows(first, 1), "both have met")


def test_a_ring_waits_for_its_founders(ring: Host) -> None:
    first = ring.start(founders=3)
    view = first.look().ring
    assert view is not None and view.awaited == 2
    first.subscribe("news")
    first.publish("news", "early")  # It waits with the node until there is a ring.
    second = ring.start(first.address)
    wait_until(lambda: (view := first.look().ring) is not None and view.awaited == 1, "the second attends")
    third = ring.start(second.address)  # Its word is passed on.
    wait_until(lambda: all(knows(node, 2) for node in (first, second, third)), "the ring is there")
    wait_until(lambda: first.look().waiting == 0, "the owner has taken the message")


def test_a_node_that_leaves_hands_over_what_it_published(ring: Host) -> None:
    first, second, third = ring.three()
    first.subscribe("news")
    wait_until(lambda: first.look().subscriptions == {"news": True}, "it is subscribed")
    for number in range(50):
        third.publish("news", str(number))
    ring.stop(third.address)
    wait_until(lambda: first.look().arrived == 50, "all of it has arrived")
    assert [text.text for text in first.take()] == [str(number) for number in range(50)]
    assert second.look().lost == 0


def test_a_node_that_is_not_there_is_said() -> None:
    with pytest.raises(Unavailable, match="does not answer"):
        NodeCaller("tcp://127.0.0.1:9")
    with pytest.raises(ProtocolError, match="write tcp://HOST:PORT"):
        NodeCaller("tcp://nowhere")


def test_a_client_in_a_few_lines(host: Host) -> None:
    """As docs/node.md shows it: plain msgpack over a REQ socket, for any language."""
    address = host.start().address
    with zmq.Context() as context, context.socket(zmq.REQ) as node:
        node.linger = 0
        node.connect(address)
        for command, answer in (
            (["publish", 1, "news", "hello"], ["done", 1]),
            (["take", 2, 0, 100], ["taken", 2, 0, []]),
            (["subscribe", 3, "x" * 200], ["failed", 3, 3]),
        ):
            node.send(msgspec.msgpack.encode(command))
            assert node.poll(60_000)
            assert msgspec.msgpack.decode(node.recv())[: len(answer)] == answer


def test_a_door_that_does_not_answer_is_said() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        silent = f"tcp://127.0.0.1:{port}"
        with NodeCaller(silent, timeout=0.1) as caller, pytest.raises(Unavailable, match="does not answer"):
            caller.look()
