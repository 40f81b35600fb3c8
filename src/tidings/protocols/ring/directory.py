"""The directory of a node: which groups there are, where each is reached, and which ranges it owns.

Everything in it is hearsay, and may be late; only a group's own journal knows what it owns. So knowledge is merged such
that the order in which it came does not matter: of each group the word with the highest slot counts for its members and
ranges, and the descriptor with the highest ballot for its leader. Slots of two groups say nothing about each other.
When two of them claim a point, one word is out of date, and the one that was learned last is believed until the other
group says more. No claim is lost by that: if the group that is believed lets go of the point, the other claim counts
again.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from operator import attrgetter, itemgetter

import msgspec

from tidings.protocols.chord.identifiers import Key
from tidings.protocols.ring.key_ranges import LAST, KeyRange, KeyRanges, cut, joined
from tidings.protocols.ring.messages import Gone, GroupDescriptor, Word

GROUPS_MAX = 4_096
"""Groups that a directory knows. One more, and one that left is forgotten, or else the one not heard of for longest."""


NEWS_MAX = 256
"""Descriptors that are news to this node and have not been told often enough."""
TELLINGS = 4
"""How often a piece of news is told, times the bits of the number of groups: so often, each to somebody else, that it
very likely comes to everybody (as updates do in SWIM, Das et al. 2002, section 4.1).
"""


class Entry:
    """What is known of one group."""

    __slots__ = ("confirmed", "descriptor", "gone", "learned", "ranges", "ranges_slot")

    def __init__(self, descriptor: GroupDescriptor) -> None:
        self.descriptor = descriptor
        self.ranges: KeyRanges = ()
        self.ranges_slot = -1
        """The slot of the word that told the ranges; -1 if there was none."""
        self.gone: tuple[Gone, ...] = ()
        self.learned = 0
        """When the latest word of the group came, as the number of learned words."""
        self.confirmed = 0


class Directory:
    """Descriptors and ranges by group.

    >>> from tidings.protocols.ring.key_ranges import WHOLE
    >>> directory = Directory()
    >>> directory.learn(Word(GroupDescriptor(b"one", ("tcp://127.0.0.1:7501",), slot=3), (WHOLE,)))
    True
    >>> directory.find(b"p" * 32).group, directory.covers()
    (b'one', True)
    """

    def __init__(self, groups_max: int = GROUPS_MAX) -> None:
        self._groups_max = groups_max
        self._entries: dict[bytes, Entry] = {}
        """The group heard of last stands last."""
        self._count = 0
        self._is_stale = False
        self._has_conflicts = False
        self._ends: list[Key] = [LAST]
        """The circle from its first point, cut where the owner changes: the last point of each piece."""
        self._owners: list[bytes | None] = [None]
        self._points: list[tuple[Key, bytes]] | None = None
        """Where the groups stand that have not left; None if that has changed."""
        self._news: dict[bytes, int] = {}
        """How often the descriptor of a group is still to be told."""

    def __len__(self) -> int:
        return len(self._entries)

    # Learning.

    def learn(self, word: Word) -> bool:
        """Takes a word in, and the descriptors in it. Says whether anything changed that somebody may act on, and not
        whether a group has merely applied more of its log.
        """
        changed = self.learn_descriptor(word.descriptor)
        for gone in word.gone:
            changed = self.learn_descriptor(gone.descriptor) or changed
        entry = self._entries.get(word.descriptor.group)
        if entry is None:
            return changed
        entry.confirmed = max(entry.confirmed, word.confirmed)  # It only grows, so the order does not matter.
        if word.descriptor.slot <= entry.ranges_slot:
            return changed
        self._count += 1
        entry.learned = self._count
        entry.ranges_slot = word.descriptor.slot
        is_same = entry.ranges == word.ranges
        if not is_same or self._has_conflicts:
            self._is_stale = True
        if is_same and entry.gone == word.gone:
            return changed
        entry.ranges, entry.gone = word.ranges, word.gone
        return True

    def distrust(self, group: bytes) -> None:
        """What a group owns is not known any more: it may have left, and others own it. Its next word counts again."""
        entry = self._entries.get(group)
        if entry is not None and entry.ranges:
            entry.ranges, entry.ranges_slot = (), -1
            self._is_stale = True

    def learn_descriptor(self, descriptor: GroupDescriptor) -> bool:
        """Takes a descriptor in; says whether anything in it but the slot was news."""
        entry = self._entries.pop(descriptor.group, None)
        if entry is None:
            self._make_room()
            self._entries[descriptor.group] = Entry(descriptor)
            self._points = None
            self._note_news(descriptor.group)
            return True
        self._entries[descriptor.group] = entry
        before, entry.descriptor = entry.descriptor, merged(entry.descriptor, descriptor)
        if before.left != entry.descriptor.left:
            self._points, self._is_stale = None, True
        if _gist(before) == _gist(entry.descriptor):
            return False
        self._note_news(descriptor.group)
        return True

    def _note_news(self, group: bytes) -> None:
        if len(self._news) >= NEWS_MAX and group not in self._news:
            del self._news[next(iter(self._news))]
        self._news[group] = TELLINGS * (len(self._entries) + 1).bit_length()

    def tell_news(self, count: int) -> list[GroupDescriptor]:
        """Some descriptors that were news here not long ago, to pass on; each has its turn, and after a while is no
        news."""
        told = []
        for group in list(self._news)[:count]:
            left = self._news.pop(group) - 1
            entry = self._entries.get(group)
            if entry is not None:
                told.append(entry.descriptor)
                if left > 0:
                    self._news[group] = left
        return told

    def _make_room(self) -> None:
        if len(self._entries) < self._groups_max:
            return
        left = (group for group, entry in self._entries.items() if entry.descriptor.left)
        group = next(left, None) or next(iter(self._entries))
        del self._entries[group]
        self._points, self._is_stale = None, True

    # What is known of groups.

    def descriptor(self, group: bytes) -> GroupDescriptor | None:
        entry = self._entries.get(group)
        return None if entry is None else entry.descriptor

    def descriptors(self) -> tuple[GroupDescriptor, ...]:
        """Every group that is known, those that left among them; the one heard of last stands last."""
        return tuple(entry.descriptor for entry in self._entries.values())

    def ranges_of(self, group: bytes) -> KeyRanges:
        """What a group owns by its own latest word; another one may have claimed some of it since."""
        entry = self._entries.get(group)
        return () if entry is None or entry.descriptor.left else entry.ranges

    def word_of(self, owner: GroupDescriptor) -> Word:
        """What is known of a group that owns something, for another node.

        It has the slot at which the ranges were told. A newer descriptor may have come by itself: old ranges under its
        slot would be taken for the newest, and what the group itself says then would be no news.
        """
        entry = self._entries[owner.group]
        assert entry.ranges and entry.ranges_slot >= 0
        return Word(msgspec.structs.replace(entry.descriptor, slot=entry.ranges_slot), entry.ranges)

    def waits_for_target(self, group: bytes, transfer: int) -> bool:
        """Whether a group may not know yet that a transfer of its has been taken. One that left knows, and so does one
        of which nothing is known any more, for it would have said that it waits.
        """
        entry = self._entries.get(group)
        return entry is not None and not entry.descriptor.left and entry.confirmed < transfer

    def pieces_of(self, group: bytes) -> KeyRanges:
        """The points of which this group is believed to be the owner; those of all groups together have none twice."""
        self._refresh()
        starts = (LAST, *self._ends[:-1])
        owned = zip(starts, self._ends, self._owners, strict=True)
        return joined(KeyRange(start, end) for start, end, owner in owned if owner == group)

    def first_at(self, point: Key) -> GroupDescriptor | None:
        """The group that stands first at or after a point of the circle, of those that have not left."""
        points = self._standing()
        if not points:
            return None
        _, group = points[bisect_left(points, point, key=itemgetter(0)) % len(points)]
        return self._entries[group].descriptor

    def following(self, point: Key) -> Iterator[GroupDescriptor]:
        """The groups that have not left, in their order from a point on, which comes last itself."""
        points = self._standing()
        first = bisect_right(points, point, key=itemgetter(0))
        for place in (*range(first, len(points)), *range(first)):
            yield self._entries[points[place][1]].descriptor

    def last_before(self, point: Key) -> GroupDescriptor | None:
        """The group that stands last before a point, of those that have not left."""
        points = self._standing()
        if not points:
            return None
        _, group = points[bisect_left(points, point, key=itemgetter(0)) - 1]
        return self._entries[group].descriptor

    def _standing(self) -> list[tuple[Key, bytes]]:
        if self._points is None:
            descriptors = (entry.descriptor for entry in self._entries.values() if not entry.descriptor.left)
            self._points = sorted((descriptor.point, descriptor.group) for descriptor in descriptors)
        return self._points

    # Who owns what.

    def find(self, point: Key) -> GroupDescriptor | None:
        """The group that owns a point, as far as this directory has heard."""
        self._refresh()
        owner = self._owners[bisect_left(self._ends, point)]
        return None if owner is None else self._entries[owner].descriptor

    def hint(self, point: Key) -> GroupDescriptor | None:
        """Whom to ask about a point: its owner if that is known, or else the one who was given it last, or else the
        group that stands first at or after it, which will own it once nothing moves any more.
        """
        owner = self.find(point)
        if owner is not None:
            return owner
        sources = sorted(
            (entry for entry in self._entries.values() if entry.gone), key=attrgetter("learned"), reverse=True
        )
        for source in sources:
            target = self._target(source, point)
            if target is not None:
                return target
        return self.first_at(point)

    def _target(self, source: Entry, point: Key) -> GroupDescriptor | None:
        """The end of the chain of hints from one group on; each may have given the point further."""
        target: Entry | None = source
        asked: dict[bytes, None] = {}
        while target is not None and target.descriptor.group not in asked:
            asked[target.descriptor.group] = None
            handed_off = [gone.descriptor.group for gone in target.gone if point in gone.key_range]
            if not handed_off:
                return None if target is source or target.descriptor.left else target.descriptor
            target = self._entries.get(handed_off[-1])
        return None

    def covers(self) -> bool:
        """Whether an owner is known for every point of the circle."""
        self._refresh()
        return None not in self._owners

    def gap(self, after: Key) -> KeyRange | None:
        """The next points after this one whose owner is not known."""
        self._refresh()
        here = bisect_right(self._ends, after)
        for place in (*range(here, len(self._ends)), *range(here)):
            if self._owners[place] is None:
                return KeyRange(after if place == here else self._ends[place - 1], self._ends[place])
        return None

    def _refresh(self) -> None:
        """Cuts the circle again, if any claim has changed."""
        if not self._is_stale:
            return
        self._is_stale = False
        pieces = sorted(
            (start, end, -entry.learned, group)
            for group, entry in self._entries.items()
            if not entry.descriptor.left
            for key_range in entry.ranges
            for start, end in cut(key_range)
        )
        self._ends, self._owners = _owners(pieces)
        self._has_conflicts = _overlap(pieces)


def merged(known: GroupDescriptor, told: GroupDescriptor) -> GroupDescriptor:
    """What two descriptors of one group say together, whichever of them came first."""
    log = max((known.slot, known.left, known.members), (told.slot, told.left, told.members))
    # A leader that nobody knows does not make one of the same term unknown, since 0 and "" come first.
    term, number, leader = max(
        (known.term, known.leader_number, known.leader), (told.term, told.leader_number, told.leader)
    )
    slot, left, members = log
    said = [each.asks_homes for each in (known, told) if (each.term, each.leader_number) == (term, number)]
    asks = True if True in said else False if False in said else None
    return GroupDescriptor(known.group, members, leader, term, slot, left, number, asks)


def _owners(pieces: list[tuple[Key, Key, int, bytes]]) -> tuple[list[Key], list[bytes | None]]:
    """Cuts the circle where owners change. `pieces` are (start, end, minus when it was learned, group), sorted."""
    bounds = sorted({b"", LAST, *(start for start, *_ in pieces), *(end for _, end, *_ in pieces)})
    ends: list[Key] = []
    owners: list[bytes | None] = []
    claims: list[tuple[int, Key, bytes]] = []
    place = 0
    for start, end in pairwise(bounds):
        while place < len(pieces) and pieces[place][0] == start:
            _, claim_end, learned, group = pieces[place]
            heapq.heappush(claims, (learned, claim_end, group))
            place += 1
        while claims and claims[0][1] <= start:
            heapq.heappop(claims)
        ends.append(end)
        owners.append(claims[0][2] if claims else None)
    return ends, owners


def _overlap(pieces: list[tuple[Key, Key, int, bytes]]) -> bool:
    """Whether any point is claimed twice."""
    last = b""
    for start, end, *_ in pieces:
        if start < last:
            return True
        last = max(last, end)
    return False


def _gist(descriptor: GroupDescriptor) -> tuple[object, ...]:
    leader = (descriptor.leader, descriptor.term, descriptor.leader_number, bool(descriptor.asks_homes))
    return descriptor.members, leader, descriptor.left
