"""What the leader of a group does for the ring: it sits in the group's virtual node, takes ranges, gives them, and
leaves.

A group that brings topics takes the points where they lie, those in its own range with that, then hands on what belongs
to others. While it does, it serves them to its own clients. A topic of somebody else at such a point is in the way:
that point is left where it is, and asked for again from time to time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import Any

from tidings.errors import InvalidRequest
from tidings.journal.disk import Buffer
from tidings.node.ring.commits import LeaderCommits
from tidings.node.ring.interest import Interests
from tidings.node.ring.roles import RingNode
from tidings.protocols.broker import operators
from tidings.protocols.broker.topics import Place
from tidings.protocols.chord.identifiers import SIZE, Key, to_key, to_point
from tidings.protocols.effects import Effect, Persist
from tidings.protocols.ring.commands import Claim, Depart, Know
from tidings.protocols.ring.handoff import Handoff
from tidings.protocols.ring.key_ranges import WHOLE, KeyRange, common, point_of, spots, without
from tidings.protocols.ring.messages import Between, GroupDescriptor
from tidings.protocols.ring.ownership import Ownership, newest
from tidings.protocols.ring.policy import ring_of
from tidings.protocols.ring.virtual_node import VirtualNode

_log = logging.getLogger(__name__)

CLAIM_AGAIN_MS = 2_000
ASK_MS = 200
"""How long an owner has to say what it owns, before something of it is wished for."""
WISH_AGAIN_MS = 800
BRING_MAX = 64
"""Points that are taken or handed on at once: as many as there are hints to where they went."""
CLASH_AGAIN_MS = 30_000
"""How long a point is left alone at which somebody else has a topic."""
KNOW_EVERY_MS = 5_000
CLASHES_TOLD_MAX = 1_000
LAST_GROUP = "The last group of a ring cannot leave it: there is nobody to take its topics."
ANNOUNCED_MAX = 256
"""Groups whose nodes are told of a new leader: those heard of last. The others ask, if they have to know."""
LEAVERS_MAX = 64
LEAVE_NOTICE_EVERY_MS = 300
LEAVE_NOTICES_MAX = 64
"""Groups that are told that ours has left; they tell the others."""
LEAVE_NOTICE_MS = 3_000
"""After this long it is enough that one of them has heard it."""


def after(point: Key) -> Key:
    """The point that follows another on the circle."""
    return to_key((to_point(point) + 1) % SIZE)


def wanted_of(key_range: KeyRange, owner: Key, point: Key) -> KeyRange:
    """What a group at a point wants of a range: what lies before it, but not its owner's own point.

    So every group owns the points up to its own, and Chord, for which that is so, finds who owns a point.

    >>> wanted_of(KeyRange(b"a", b"m"), b"m", b"e")
    KeyRange(start=b'a', end=b'e')
    >>> wanted_of(WHOLE, b"c", b"e"), wanted_of(WHOLE, b"m", b"e")
    (KeyRange(start=b'c', end=b'e'), KeyRange(start=b'm', end=b'e'))
    """
    is_behind = key_range == WHOLE or owner in KeyRange(key_range.start, point)
    return KeyRange(owner if is_behind else key_range.start, point)


class Leading:
    """One time of leading; the next leader begins with what is in the journal."""

    def __init__(self, node: RingNode, now_ms: int) -> None:
        self._node = node
        self.machine = node.engine.broker.machine
        settings = node.settings
        self.handoff = Handoff(self.machine, self._read, node.directory.descriptor)
        self.virtual_node = VirtualNode(
            node.descriptor().group,
            node.directory,
            settings.chord,
            settings.scribe,
            Random(node.address + str(now_ms)),
            settings.dissemination,
        )
        self.commits = LeaderCommits(node, self.machine, self.handoff.is_closing)
        self.interests = Interests()
        """What the nodes of the group want to get by way of the virtual node."""
        self._is_placed = False
        self._ranges = self.ring.ranges if self.ring is not None else None
        self._claimed_at_ms = now_ms - CLAIM_AGAIN_MS
        self._known_at_ms = now_ms
        self.heir: bytes | None = None
        """To whom everything is offered, if the group is to leave."""
        self._wish_at_ms = 0
        self._has_asked = False
        self._clashes: dict[Key, int] = {}
        """Points of what is brought where somebody else has a topic, and until when they are left alone."""
        self._told: dict[str, None] = {}
        self._leavers: dict[Any, int] = {}
        """Operators who want the group to leave and wait until it has, each with the number of its last request."""
        self._left_at_ms: int | None = None
        self._leave_notice_at_ms = 0
        self._heard: dict[bytes, None] = {}
        """Groups that have heard that ours has left."""
        self._announce()

    def _announce(self) -> None:
        """Tells the nodes of other groups who leads this one now: they need not ask all the time."""
        node, own = self._node, self._node.descriptor().group
        if self.ring is not None:
            word = node.word()
            for descriptor in node.directory.descriptors()[-ANNOUNCED_MAX:]:
                for address in descriptor.members if descriptor.group != own and not descriptor.left else ():
                    node.send_node(address, word)

    @property
    def ring(self) -> Ownership | None:
        """What the group owns, None before it has claimed anything."""
        return ring_of(self.machine)

    def _read(self, place: Place) -> Buffer:
        return self._node.engine.batches.body(place)

    def ownership_moved(self) -> bool:
        """Whether other ranges are owned than when this was last asked; the very first claim is no move."""
        ring = self.ring
        ranges = None if ring is None else ring.ranges
        before, self._ranges = self._ranges, ranges
        return before is not None and before != ranges

    def partners(self) -> Iterator[bytes]:
        """The groups with which something is being handed over, or is to be; or that hold up a commit."""
        yield from self.commits.awaited()
        ring = self.ring
        if ring is not None and ring.taking_over is not None:
            yield ring.taking_over.source
        if ring is not None and ring.departs and self.heir is not None:
            yield self.heir
        if self._left_at_ms is not None:
            yield from self._waiting()

    def find(self, now_ms: int, point: Key) -> bool:
        """Has Chord look for the owner of a point; False if there is no ring to look in yet."""
        if not self._is_placed or not self.virtual_node.is_member:
            return False
        self.virtual_node.find(now_ms, point)
        return True

    def learn_interest(self, now_ms: int, proxy: str, topics: tuple[str, ...]) -> None:
        """Clients of a node of our group read these topics."""
        self.interests.learn(now_ms, proxy, topics)
        self._sync(now_ms)

    def _sync(self, now_ms: int) -> None:
        ring = self.ring
        if self._is_placed and ring is not None:
            self.interests.sync(now_ms, self.virtual_node, ring.owns_topic)

    def publish(self, topic: str, payload: bytes) -> bool:
        """Sends a payload to the virtual nodes that want a topic; False if there is nobody to send it to."""
        return self._is_placed and self.virtual_node.is_member and self.virtual_node.publish(topic, payload)

    def receive(self, now_ms: int, between: Between) -> None:
        """A message for the virtual node; before that is taken, only the descriptor of its sender counts."""
        if self._is_placed:
            self.virtual_node.receive(now_ms, between)
        else:
            self._node.directory.learn_descriptor(between.sender)

    def leave(self, peer: Any, request: int) -> list[Effect]:
        """The group is to give away all that it owns, whichever node leads; who asked hears when that is done."""
        ring = self.ring
        if ring is None or ring.ranges == (WHOLE,):
            raise InvalidRequest(LAST_GROUP)
        if ring.strays:
            raise InvalidRequest(
                "This group still brings topics of its own into the ring: ask again when all are there."
            )
        if len(self._leavers) < LEAVERS_MAX or peer in self._leavers:
            self._leavers[peer] = request
        return [] if ring.departs else [Persist(Depart())]

    def tick(self, now_ms: int) -> list[Effect]:
        """What is due, as effects for the engine; the virtual node's messages lie in its `outgoing`."""
        node, ring = self._node, self.ring
        descriptor = node.descriptor()
        if ring is None:
            return list(self._claim(now_ms))
        if ring.ranges and not self._is_placed:
            self._is_placed = True
            self.virtual_node.start(now_ms, descriptor)
        if self._is_placed:
            self.virtual_node.tick(now_ms, descriptor)
            self._sync(now_ms)
        if not ring.ranges and not ring.has_left:
            # Also if it is to leave: somebody may be giving it something by now, and it would be missed for ever.
            self._come(now_ms, descriptor)
        elif ring.departs and ring.ranges == (WHOLE,):
            return list(self._stay(now_ms))
        elif ring.departs:
            self._go(now_ms)
        elif ring.strays:
            self._bring(now_ms, ring)
        elif ring.brought:
            self._hand_on(now_ms, ring)
        self._note_clashes(now_ms, ring)
        effects = [*self.handoff.tick(now_ms, descriptor), *self._remember(now_ms, descriptor)]
        return effects + self.commits.tick(now_ms)

    def _claim(self, now_ms: int) -> Iterator[Effect]:
        """The first group of a ring owns all of it; every other one begins with nothing."""
        if self._is_time_to_claim(now_ms):
            yield Persist(Claim(() if self._node.settings.contacts else (WHOLE,)))

    def _stay(self, now_ms: int) -> Iterator[Effect]:
        """All other groups have left meanwhile."""
        self.handoff.stay()
        leavers, self._leavers = self._leavers, {}
        for peer, request in leavers.items():
            self._node.engine.refuse(peer, request, InvalidRequest(LAST_GROUP))
        if self._is_time_to_claim(now_ms):
            yield Persist(Depart(False))

    def _is_time_to_claim(self, now_ms: int) -> bool:
        """Whether to have something agreed on that may have been on its way already."""
        if now_ms - self._claimed_at_ms < CLAIM_AGAIN_MS:
            return False
        self._claimed_at_ms = now_ms
        return True

    def _come(self, now_ms: int, descriptor: GroupDescriptor) -> None:
        """A group that owns nothing wants the points up to its own, from their owners."""
        node = self._node
        owner = node.directory.find(descriptor.point)
        if owner is None or not owner.leader:
            node.seek(now_ms, descriptor.point)
        elif self.handoff.idle and owner.group != descriptor.group and now_ms >= self._wish_at_ms:
            # What is known may be old, and the one who has given the point away has nothing to give: so ask first.
            if not self._has_asked:
                self._has_asked, self._wish_at_ms = True, now_ms + ASK_MS
                node.suspect(owner.group)
                return
            self._has_asked, self._wish_at_ms = False, now_ms + WISH_AGAIN_MS
            for key_range in node.directory.ranges_of(owner.group):
                if descriptor.point in key_range:
                    wanted = (wanted_of(key_range, owner.point, descriptor.point),)
                    self.handoff.wish(without(wanted, spots(self._clashes)), owner)

    def _bring(self, now_ms: int, ring: Ownership) -> None:
        """Takes some points of what the group had before it joined, of one of their owners after the other."""
        node = self._node
        if not self.handoff.idle or now_ms < self._wish_at_ms:
            return
        self._wish_at_ms = now_ms + ASK_MS
        of: dict[GroupDescriptor, list[Key]] = {}
        for point in ring.strays:
            owner = node.directory.find(point)
            if owner is None or not owner.leader:
                node.seek(now_ms, point)
            elif point not in self._clashes and owner.group != node.descriptor().group:
                of.setdefault(owner, []).append(point)
        for owner, points in islice(of.items(), 1):
            self._wish_at_ms = now_ms + ASK_MS
            node.suspect(owner.group)
            self.handoff.wish(spots(points[:BRING_MAX]), owner)

    def _hand_on(self, now_ms: int, ring: Ownership) -> None:
        """Offers what was brought to those who own what lies around it."""
        node = self._node
        if now_ms < self._wish_at_ms or ring.handing_off is not None:
            return
        self._wish_at_ms = now_ms + WISH_AGAIN_MS
        of: dict[GroupDescriptor, list[KeyRange]] = {}
        for key_range in common(ring.brought, ring.ranges):
            point = after(key_range.end)
            heir = node.directory.find(point)
            if heir is None or not heir.leader:
                node.seek(now_ms, point)
            elif heir.group != node.descriptor().group:
                of.setdefault(heir, []).append(key_range)
        for heir, ranges in islice(of.items(), 1):
            self.handoff.offer(heir, tuple(ranges[:BRING_MAX]))

    def _note_clashes(self, now_ms: int, ring: Ownership) -> None:
        """Leaves points alone at which there is a topic of somebody else, and says so once for each."""
        self._clashes = {
            point: until_ms for point, until_ms in self._clashes.items() if now_ms < until_ms and point in ring.strays
        }
        for name in self.handoff.take_clashes():
            self._clashes[point_of(name)] = now_ms + CLASH_AGAIN_MS
            if name not in self._told and len(self._told) < CLASHES_TOLD_MAX:
                self._told[name] = None
                _log.warning(
                    "tidings: The ring has a topic %r, and this group has one in the same place, which stays out of "
                    "the ring: it is served at the nodes of this group alone until the ring's is gone.",
                    name,
                )

    def _go(self, now_ms: int) -> None:
        """A group that leaves gives everything to the owner of the points behind its own."""
        node, ring = self._node, self.ring
        assert ring is not None
        if ring.ranges:
            point = after(ring.ranges[-1].end)
            target = node.directory.find(point)
            if target is None or not target.leader:
                node.seek(now_ms, point)
            else:
                self.heir = target.group
                self.handoff.leave(target)
        elif ring.has_left and self._is_let_go(now_ms):
            leavers, self._leavers = self._leavers, {}
            for peer, request in leavers.items():
                node.engine.reply(peer, operators.RingLeft(request))

    def _is_let_go(self, now_ms: int) -> bool:
        """Whether nobody needs this group any more: once the operator knows that it has left, it is switched off.

        Who gave us something has to know that it was taken, for nobody else can tell. And somebody has to know that we
        have left, or else we would be waited for.
        """
        if self._left_at_ms is None:
            self._left_at_ms = now_ms
        directory, own = self._node.directory, self._node.descriptor().group
        others = [
            descriptor for descriptor in directory.descriptors() if descriptor.group != own and not descriptor.left
        ][-LEAVE_NOTICES_MAX:]
        deaf = [descriptor for descriptor in others if descriptor.group not in self._heard]
        if deaf and now_ms >= self._leave_notice_at_ms:
            self._leave_notice_at_ms = now_ms + LEAVE_NOTICE_EVERY_MS
            self._node.send_leave_notices(deaf)
        is_known = not deaf or (self._heard and now_ms - self._left_at_ms >= LEAVE_NOTICE_MS)
        return bool(is_known) and not any(self._waiting())

    def _waiting(self) -> Iterator[bytes]:
        """The groups that gave us something, and may not know that we have it."""
        ring = self.ring
        assert ring is not None
        waits = self._node.directory.waits_for_target
        return (source for source, number in ring.taken_over.items() if waits(source, number))

    def on_heard(self, group: bytes) -> None:
        """A group knows that ours has left."""
        if self._left_at_ms is not None:
            self._heard[group] = None

    def remember_soon(self) -> None:
        """What is known of groups is to be written down now."""
        self._known_at_ms = 0

    def _remember(self, now_ms: int, descriptor: GroupDescriptor) -> Iterator[Effect]:
        """Writes down which groups there are, so that this one finds its ring again after all nodes were down, and
        which have left, so that it waits for none of them.
        """
        ring = self.ring
        assert ring is not None
        if now_ms - self._known_at_ms < KNOW_EVERY_MS:
            return
        self._known_at_ms = now_ms
        descriptors = newest(each for each in self._node.directory.descriptors() if each.group != descriptor.group)
        if _gist(descriptors) != _gist(ring.contacts):
            yield Persist(Know(descriptors))


def _gist(descriptors: tuple[GroupDescriptor, ...]) -> dict[bytes, tuple[object, ...]]:
    """What is worth writing down: not who leads at the moment."""
    return {descriptor.group: (descriptor.members, descriptor.left) for descriptor in descriptors}
