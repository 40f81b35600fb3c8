"""How a broker alone becomes the first member of a group, in place, and either becomes a node of a ring.

Nothing of the journal is rewritten: what was stored so far is the state before the first slot of the group's log
(`node.replica`). Who the member is is written down first, and counts with the folder's new role, which is one step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidings.errors import InvalidRequest, ProtocolError
from tidings.journal.disk import RealDisk
from tidings.journal.folder import HOLDER_NAME, MEMBER
from tidings.journal.journal import Journal
from tidings.journal.notes import write_note
from tidings.journal.remedies import RESTORE, advising
from tidings.node.identity import MEMBER_NAME, DrawGroup, Identity, any_group, write_mark
from tidings.protocols.broker import messages, operators
from tidings.protocols.broker.machine import Machine
from tidings.protocols.chord.identifiers import Key
from tidings.protocols.effects import Peer
from tidings.protocols.multipaxos.joining import Known, Meet, Member
from tidings.protocols.ring.key_ranges import point_of, spots
from tidings.protocols.ring.transfer import points_of, topics_in
from tidings.wire import codec
from tidings.wire.codec import Frame
from tidings.wire.replication import ReplicaPeer, decode_message, encode_message

MEETS_MAX = 16
MEET_SILENCE_MS_MAX = 3_000
"""Who asks to join says so several times a second: one that is silent for this long has gone."""
PEERS_MAX = 100_000
BROUGHT_MAX = 1_000
"""Points of topics and clients that a group brings into a ring: so many pieces may fall out of the ranges of others."""
Look = Callable[[Sequence[Key], str], Sequence[str]]
"""Asks a ring which topics it has at some points; none if the group of that name is a part of it."""

Outgoing = list[tuple[Peer, list[Frame]]]


def become_member(disk: RealDisk, journal: Journal, address: str, draw_group: DrawGroup = any_group) -> Identity:
    """Makes the folder of a broker alone that of a group of one."""
    with advising(RESTORE):
        for _ in journal.recover().records:
            pass
    if HOLDER_NAME in disk.names():  # A storage server kept it; the broker that was served there has it no longer.
        disk.remove(HOLDER_NAME)
    mark = os.urandom(16)
    write_mark(disk, mark)
    founder = Member(1, address, mark)
    identity = Identity(draw_group(), 1, mark, (founder,), (founder,), (), journal.end_address)
    write_note(disk, MEMBER_NAME, identity)
    disk.home.grow(MEMBER)
    return identity


def unfit_for_ring(machine: Machine) -> str:
    """Which subscription could not be kept once the topics have several owners, and what to do; "" if there is none."""
    for subscription in machine.subscriptions.values():
        client, topics = subscription.client, subscription.topics
        if len({point_of(topic) for topic in topics}) > 1:
            return (
                f"No ring begins: {client!r} is subscribed to {', '.join(map(repr, topics))} as one, and in a ring "
                "they may have different owners. Have it unsubscribe, and subscribe to each of them."
            )
    return ""


def unfit_to_join(machine: Machine) -> str:
    """What keeps a broker from joining a ring with its topics, and what to do; "" if nothing does."""
    if unfit := unfit_for_ring(machine):
        return unfit.replace("No ring begins", "No ring is joined", 1)
    count = len(points_of(machine))
    if count > BROUGHT_MAX:
        return (
            f"No ring is joined: there are {count:,} topics and names of clients here, and a group brings at most "
            f"{BROUGHT_MAX:,}. Begin a ring of its own with --ring."
        )
    return ""


def check_apart(machine: Machine, look: Look, contacts: tuple[str, ...], group: str = "") -> None:
    """InvalidRequest if a ring has a topic where one of this broker lies."""
    unfit = unfit_to_join(machine)
    held = look(points_of(machine), group) if not unfit else ()
    if unfit or held:
        raise InvalidRequest(unfit or _sentence_of(machine, held[0], contacts))


def _sentence_of(machine: Machine, theirs: str, contacts: tuple[str, ...]) -> str:
    names = topics_in(machine, spots((point_of(theirs),)))
    ours = min(names, key=lambda name: (name != theirs, name))
    both = f"both have a topic {ours!r}" if ours == theirs else f"{theirs!r} there lies where {ours!r} does here"
    return (
        f"The ring at {', '.join(contacts)} cannot take in what is here, because {both}: start it without "
        "--join, as before."
    )


class _Told(NamedTuple):
    peer: Peer
    request: int


class _Meeting(NamedTuple):
    frames: Sequence[Frame]
    heard_at_ms: int


class Growth:
    """What a broker alone does for those who would make it a group: it lists itself, hears who asks to join, and is
    `wanted` to grow once one of them is to be added. It tells its clients to come again then.
    """

    def __init__(self, address: str, obstacle: str = "") -> None:
        self._address = address
        self._obstacle = obstacle
        """Why it cannot grow, if it cannot."""
        self.wanted = False
        self._meetings: dict[str, _Meeting] = {}
        """Who asks to join, by address, and how."""
        self._peers: dict[Peer, None] = {}
        self._told: list[_Told] = []

    def see(self, peer: Peer) -> None:
        """Somebody asks something of this broker."""
        if len(self._peers) < PEERS_MAX:
            self._peers[peer] = None

    def hear(self, now_ms: int, frames: Sequence[Frame]) -> Outgoing:
        """What another node says to this one as to a member."""
        try:
            message = decode_message(frames).message
        except ProtocolError:
            return []
        if not isinstance(message, Meet):
            return []
        self._forget_silent(now_ms)
        if message.address not in self._meetings and len(self._meetings) >= MEETS_MAX:
            return []
        self._meetings[message.address] = _Meeting(frames, now_ms)
        return [(ReplicaPeer(message.address), encode_message(Known((self._address,))))]

    def _forget_silent(self, now_ms: int) -> None:
        self._meetings = {
            address: each for address, each in self._meetings.items() if now_ms - each.heard_at_ms < MEET_SILENCE_MS_MAX
        }

    def meets(self) -> list[Sequence[Frame]]:
        """What those have said who ask to join."""
        return [each.frames for each in self._meetings.values()]

    def answer(
        self, now_ms: int, peer: Peer, message: object, applied: int
    ) -> messages.AnyAnswer | operators.Members | None:
        """What an operator is told; None for one who waits until there is a group."""
        match message:
            case operators.AskMembers(request):
                row = operators.MemberInfo(1, self._address, "alone", True)
                return operators.Members(request, "", 1, applied, (row,))
            case operators.AddMember(request, address):
                if self._obstacle:
                    raise InvalidRequest(self._obstacle)
                self._forget_silent(now_ms)
                if address not in self._meetings:
                    raise InvalidRequest(nobody_joins(address, self._address))
                self.wanted = True
                self._told.append(_Told(peer, request))
        return None

    def redirects(self) -> Outgoing:
        """What all who have asked something are told when the group takes over: to ask it instead."""
        everybody = (_Told(peer, 0) for peer in self._peers)
        return [
            (peer, [codec.encode(messages.NotLeader(request, "", (self._address,)))])
            for peer, request in (*self._told, *everybody)
        ]


def nobody_joins(address: str, members: str) -> str:
    """What an operator is told who wants a node added that has not asked to join."""
    if address == members:
        return f"{address} is the broker that you ask: give the address of the node that is to join it."
    return (
        f"Nobody at {address} asks to join: start it with `tidings serve --data DIR --bind {address} --into "
        f"{members}`, then add it."
    )
