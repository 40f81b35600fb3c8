"""Whom a node asks about groups, and whom it believes no more."""

from __future__ import annotations

from tidings.node.ring.seeking import (
    ASK_AGAIN_MS,
    ASK_ALL_AFTER,
    IDLE_PULSE_MS,
    LOST_MS,
    PULSE_MS,
    SILENCE_MS_MAX,
    WANTED_MS_MAX,
    Seeking,
)
from tidings.protocols.chord.identifiers import key_of
from tidings.protocols.ring.directory import Directory
from tidings.protocols.ring.key_ranges import WHOLE
from tidings.protocols.ring.messages import AskWord, Find, GroupDescriptor, Word

LEADER, OTHER, ASKER = (f"tcp://127.0.0.1:{port}" for port in (1, 2, 3))
DESCRIPTOR = GroupDescriptor(b"group", (LEADER, OTHER), LEADER, 1, 5)
POINT = key_of("news")


class Desk:
    """A node that wants to know things, and what it has sent."""

    def __init__(self, *words: Word) -> None:
        self.directory = Directory()
        for word in words or (Word(DESCRIPTOR, (WHOLE,)),):
            self.directory.learn(word)
        self.sent: list[tuple[str, AskWord | Find | Word]] = []
        self.seeking = Seeking(
            self.directory, lambda to, message: self.sent.append((to, message)), lambda *_: False, lambda: ()
        )

    def asked(self) -> set[bytes]:
        """The groups that were asked what they own."""
        return {message.group for _, message in self.sent if isinstance(message, AskWord)}

    def pass_until(self, now_ms: int, *in_use: bytes, own: bytes = b"") -> None:
        for at_ms in range(1_000, now_ms + 1, PULSE_MS // 3):
            self.seeking.tick(at_ms, in_use, (), own)


def test_a_group_that_is_silent_for_long_is_believed_no_more() -> None:
    """P12: it may have left, and been switched off before anybody heard of that."""
    desk = Desk()
    desk.seeking.tick(999, (b"group",))
    desk.seeking.on_sent(1_000, LEADER)
    desk.pass_until(1_000 + SILENCE_MS_MAX, b"group")
    assert {to for to, _ in desk.sent} == {LEADER}
    desk.pass_until(1_000 + LOST_MS, b"group")
    assert {to for to, _ in desk.sent} == {LEADER, OTHER}
    assert desk.directory.find(POINT) == DESCRIPTOR
    desk.pass_until(1_000 + 2 * LOST_MS, b"group")
    assert desk.directory.find(POINT) is None


def test_a_leader_that_owes_nothing_is_seldom_asked() -> None:
    """And not at all while something comes from it."""
    desk = Desk()
    for at_ms in range(1_000, 11_000, PULSE_MS // 3):
        desk.seeking.tick(at_ms, (b"group",))
        if any(isinstance(message, AskWord) for _, message in desk.sent[-1:]):
            desk.seeking.on_heard(at_ms, LEADER)
            desk.sent.append((LEADER, Word(DESCRIPTOR, (WHOLE,))))
    assert 2 <= sum(isinstance(message, AskWord) for _, message in desk.sent) <= 10_000 // IDLE_PULSE_MS
    desk.sent.clear()
    for at_ms in range(11_000, 21_000, PULSE_MS // 3):
        desk.seeking.on_sent(at_ms, LEADER)
        desk.seeking.on_heard(at_ms, LEADER)
        desk.seeking.tick(at_ms, (b"group",))
    assert desk.sent == []


def test_one_that_is_silent_while_nothing_is_wanted_is_found_out_too() -> None:
    desk = Desk()
    desk.pass_until(1_000 + 2 * IDLE_PULSE_MS + LOST_MS, b"group")
    assert desk.directory.find(POINT) is None


def test_what_others_are_told_is_asked_after_too() -> None:
    desk = Desk()
    desk.seeking.on_find(1_000, ASKER, POINT)
    assert desk.sent == [(ASKER, Word(DESCRIPTOR, (WHOLE,)))]
    desk.pass_until(1_000 + 2 * LOST_MS)
    assert desk.directory.find(POINT) is None


def test_all_groups_are_asked_for_a_point_to_which_nothing_leads() -> None:
    """P12: one that left gave its ranges to the next group, then another came between them: Chord leads to that one."""
    names = [b"group-%d" % number for number in range(10)]
    desk = Desk(*(Word(GroupDescriptor(name, (LEADER,), LEADER, 1, 5), ()) for name in names))
    desk.seeking.want(1_000, POINT)
    desk.pass_until(1_000 + ASK_ALL_AFTER * ASK_AGAIN_MS - 1)
    assert len(desk.asked()) == 1, "the one that should own it"
    desk.pass_until(1_000 + (ASK_ALL_AFTER + len(names)) * ASK_AGAIN_MS)
    assert desk.asked() == set(names)


def test_for_others_a_node_does_not_ask_everybody() -> None:
    """Else two nodes that have asked each other would never stop."""
    desk = Desk(*(Word(GroupDescriptor(b"group-%d" % number, (LEADER,), LEADER, 1, 5), ()) for number in range(10)))
    desk.seeking.on_find(1_000, ASKER, POINT)
    desk.pass_until(1_000 + WANTED_MS_MAX)
    assert len(desk.asked()) == 1


def test_our_own_group_is_not_asked() -> None:
    desk = Desk()
    desk.pass_until(1_000 + 2 * LOST_MS, b"group", own=b"group")
    assert desk.sent == []
    assert desk.directory.find(POINT) == DESCRIPTOR
