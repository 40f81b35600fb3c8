"""The holes that the two documents admit, each closed, and each test failing when its fix is taken out.

Seed 004: the broker dies after storing a put and before answering; the client dies after receiving a message and
before acknowledging it. Seed 000: the broker is away for longer than the client tries to acknowledge.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import tidings
from tidings.client.bus import Bus
from tidings.client.inbox import Inbox
from tidings.node.embedded import EmbeddedLink, EmbeddedNode
from tidings.protocols.broker import messages, writing
from tidings.protocols.broker.machine import Machine
from tidings.settings import BrokerSettings, ClientSettings, JournalSettings
from tidings.wire import codec
from tidings.wire.codec import Frame

PATIENCE = ClientSettings(timeout_ms=30, retries=3)


class Trouble:
    """A broker on a folder that can die and come back, and the links to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.node: EmbeddedNode | None = None
        self.dies_after: type | None = None
        """Dies when it has handled the next request of this kind, before the answer is out."""
        self.drops: type | None = None
        """Requests of this kind never arrive."""
        self.deaths = 0
        self.revive()

    def revive(self) -> None:
        self.node = EmbeddedNode(self._folder, BrokerSettings(), JournalSettings())

    def die(self) -> None:
        assert self.node is not None
        self.node.close()
        self.node = None
        self.deaths += 1

    def connect(self, client_id: str, inbox: Path | None = None) -> Bus:
        bus = Bus(TroubledLink(self), client_id, PATIENCE, inbox)
        bus.start()
        return bus


class TroubledLink:
    """Frames to a broker that may not be there."""

    def __init__(self, trouble: Trouble) -> None:
        self._trouble = trouble
        self._node: EmbeddedNode | None = None
        self._link: EmbeddedLink | None = None

    def _connected(self) -> EmbeddedLink | None:
        node = self._trouble.node
        if node is None:
            return None
        if node is not self._node or self._link is None:
            self._node, self._link = node, EmbeddedLink(node)
        return self._link

    def send(self, frames: list[Frame]) -> None:
        link = self._connected()
        if link is None:
            return
        kind = type(codec.decode_request(frames[0]))
        if kind is self._trouble.drops:
            return
        link.send(frames)
        if kind is self._trouble.dies_after:
            self._trouble.dies_after = None
            self._trouble.die()

    def receive(self, timeout_ms: int) -> list[Frame] | None:
        link = self._connected()
        if link is not None:
            return link.receive(timeout_ms)
        return None

    def reopen(self, address: str | None = None) -> None:
        self._node = None
        if self._trouble.node is None and self._trouble.deaths == 1:
            self._trouble.revive()

    def close(self) -> None:
        self._link = None


@pytest.fixture
def trouble(tmp_path: Path) -> Trouble:
    return Trouble(tmp_path / "data")


def stored_values(trouble: Trouble) -> list[str]:
    reader = trouble.connect("reader")
    subscription = reader.subscribe("news", start="earliest")
    return [message.text for message in subscription.messages(timeout=0)]


def put_through_a_crash(trouble: Trouble) -> list[str]:
    bus = trouble.connect("alice")
    bus.put("news", "before")
    trouble.dies_after = messages.Put
    receipt = bus.put("news", "once")
    assert trouble.deaths == 1
    assert receipt.offset == 1
    bus.put("news", "after")
    return stored_values(trouble)


def test_a_put_stored_but_not_answered_is_stored_once(trouble: Trouble) -> None:
    """Z9, the first hole of seed 004."""
    assert put_through_a_crash(trouble) == ["before", "once", "after"]


def test_without_remembered_numbers_the_put_would_be_doubled(trouble: Trouble, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fix taken out: a restarted broker that has forgotten the sequence numbers."""
    plan = writing._plan_one

    def forgetful(machine: Machine, client: object, batch: object, target: messages.Target, *rest: object) -> object:
        if trouble.deaths:
            track = machine.clients["alice"].tracks.get("news")
            if track is not None and target.sequence == track.last:
                track.last -= 1
        return plan(machine, client, batch, target, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(writing, "_plan_one", forgetful)
    with pytest.raises(AssertionError):
        assert put_through_a_crash(trouble) == ["before", "once", "after"]


def receive_and_die(trouble: Trouble, inbox: Path | None) -> list[tuple[str, bool]]:
    """A client that dies with a message in flight; what its next life is given."""
    publisher = trouble.connect("publisher")
    first = trouble.connect("alice", inbox)
    subscription = first.subscribe("news")
    publisher.put_many("news", ["one", "two"])
    trouble.drops = messages.Ack  # It dies before its acknowledgement is out.
    assert next(subscription.messages(timeout=0)).text == "one"
    trouble.drops = None
    if inbox is not None:
        first._core.inbox.close()  # type: ignore[union-attr]  # The lock that its death would have freed.
    second = trouble.connect("alice", inbox)
    return [(message.text, message.redelivered) for message in second.subscribe("news").messages(timeout=0)]


def test_with_an_inbox_no_message_comes_twice(trouble: Trouble, tmp_path: Path) -> None:
    """Z10, the second hole of seed 004."""
    assert [text for text, _ in receive_and_die(trouble, tmp_path / "inbox")] == ["two"]


def test_without_the_inbox_the_message_comes_again_and_says_so(trouble: Trouble) -> None:
    """Z10: told `redelivered`."""
    assert receive_and_die(trouble, None) == [("one", True), ("two", True)]


def test_an_inbox_that_writes_nothing_down_would_repeat_the_message(
    trouble: Trouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fix taken out."""
    monkeypatch.setattr(Inbox, "mark_all", lambda *_: None)
    with pytest.raises(AssertionError):
        assert [text for text, _ in receive_and_die(trouble, tmp_path / "inbox")] == ["two"]


def acknowledge_too_late(trouble: Trouble) -> list[str]:
    """The broker dies with the acknowledgement and stays away for longer than the client tries."""
    bus = trouble.connect("alice")
    bus.subscribe("news")
    bus.put_many("news", ["one", "two"])
    trouble.deaths = 1  # From here on nobody revives it but us.
    trouble.dies_after = messages.Ack
    with pytest.raises(tidings.Unavailable):
        bus.get("news")
    assert trouble.node is None
    trouble.revive()
    return [message.text for message in iter(lambda: bus.get("news"), None)]


def test_a_broker_away_for_longer_than_the_tries_repeats_nothing(trouble: Trouble) -> None:
    """Z10, the hole of seed 000: the message is given out by the next get, once."""
    assert acknowledge_too_late(trouble) == ["one", "two"]


def test_a_client_that_forgets_the_message_with_an_unknown_outcome_would_lose_it(
    trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fix taken out: the acknowledgement had been stored, so the broker does not send the message again."""
    original = Bus.get

    def forgetful(self: Bus, *arguments: object, **named: object) -> object:
        try:
            return original(self, *arguments, **named)  # type: ignore[arg-type]
        except tidings.Unavailable:
            self._session.streams.__init__(self._session)  # type: ignore[misc]
            raise

    monkeypatch.setattr(Bus, "get", forgetful)
    with pytest.raises(AssertionError):
        assert acknowledge_too_late(trouble) == ["one", "two"]


def test_a_put_that_ended_unavailable_can_be_sent_again_safely(trouble: Trouble) -> None:
    """Z8, Z9: after the last try the error itself knows how to send the very same put again."""
    bus = trouble.connect("alice")
    bus.put("news", "before")
    trouble.deaths = 1
    trouble.dies_after = messages.Put
    with pytest.raises(tidings.Unavailable, match="tries") as caught:
        bus.put("news", "with an unknown outcome")
    trouble.revive()
    receipt = caught.value.resend()
    assert (receipt.offset, receipt.duplicate) == (1, True)
    assert stored_values(trouble) == ["before", "with an unknown outcome"]
