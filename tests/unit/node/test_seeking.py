"""Whom a node asks about groups, and whom it believes no more."""

from __future__ import annotations

from tidings.node.ring.seeking import LOST_MS, PULSE_MS, SILENCE_MS_MAX, Seeking
from tidings.protocols.chord.identifiers import key_of
from tidings.protocols.ring.arcs import WHOLE
from tidings.protocols.ring.directory import Directory
from tidings.protocols.ring.messages import AskWord, Card, Find, Word

LEADER, OTHER, ASKER = (f"tcp://127.0.0.1:{port}" for port in (1, 2, 3))
CARD = Card(b"group", (LEADER, OTHER), LEADER, 1, 5)
POINT = key_of("news")


class Desk:
    """A node that wants to know things, and what it has sent."""

    def __init__(self) -> None:
        self.directory = Directory()
        self.directory.learn(Word(CARD, (WHOLE,)))
        self.sent: list[tuple[str, AskWord | Find | Word]] = []
        self.seeking = Seeking(
            self.directory, lambda to, message: self.sent.append((to, message)), lambda *_: False, lambda: ()
        )

    def pass_until(self, now_ms: int, *in_use: bytes, own: bytes = b"") -> None:
        for at_ms in range(1_000, now_ms + 1, PULSE_MS // 3):
            self.seeking.tick(at_ms, in_use, own)


def test_a_group_that_is_silent_for_long_is_believed_no_more() -> None:
    """P12: it may have left, and been switched off before anybody heard of that."""
    desk = Desk()
    desk.pass_until(1_000 + SILENCE_MS_MAX, b"group")
    assert {to for to, _ in desk.sent} == {LEADER}
    desk.pass_until(1_000 + LOST_MS, b"group")
    assert {to for to, _ in desk.sent} == {LEADER, OTHER}
    assert desk.directory.find(POINT) == CARD
    desk.pass_until(1_000 + 2 * LOST_MS, b"group")
    assert desk.directory.find(POINT) is None


def test_what_others_are_told_is_asked_after_too() -> None:
    desk = Desk()
    desk.seeking.on_find(1_000, ASKER, POINT)
    assert desk.sent == [(ASKER, Word(CARD, (WHOLE,)))]
    desk.pass_until(1_000 + 2 * LOST_MS)
    assert desk.directory.find(POINT) is None


def test_our_own_group_is_not_asked() -> None:
    desk = Desk()
    desk.pass_until(1_000 + 2 * LOST_MS, b"group", own=b"group")
    assert desk.sent == []
    assert desk.directory.find(POINT) == CARD
