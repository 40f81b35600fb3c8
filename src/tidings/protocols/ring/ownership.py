"""What a group owns of the circle, as its own journal knows it.

A broker that is part of no ring has no `Ownership`, and nothing is asked. In a ring every group has one, and it changes
only by journaled commands: anyone who applies the same records owns the same.

Ranges leave for good when they are *given*: from that record on nothing is accepted for them, and what they hold is
frozen until the target has all of it (`HandingOff`). The group that *takes* collects what it gets in its own journal
(`TakingOver`), out of sight, and owns it with one record at the end. So no point is ever owned by two groups. Every
transfer has a number of its source's; the target remembers which it has taken, so that one that is offered again is not
taken twice, even if it has been given on since.

A group that was there before it joined its ring *brings* topics of its own. The points where these lie, and the homes
of its clients, are its `strays`: no part of what it owns in the ring, and served to the clients at its own doors all
the same. It takes these points from their owners, who give them only if they hold no topic there; so one by one they
become what it owns, in place, and then it hands them on to those who own what lies around them (`brought`).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tidings.errors import InvalidRequest, Moved
from tidings.protocols.chord.identifiers import Key
from tidings.protocols.ring.commits import Commits, CommitsState
from tidings.protocols.ring.facts import START, Mark
from tidings.protocols.ring.key_ranges import (
    KeyRange,
    KeyRanges,
    common,
    finder,
    home_of,
    joined,
    owns,
    point_of,
    spots,
    without,
)
from tidings.protocols.ring.messages import Gone, GroupDescriptor

HANDED_OFF_MAX = 64
CONTACTS_MAX = 64
"""Groups that are remembered, and as many that have left."""
TAKEN_MAX = 4_096
"""Groups of which it is remembered what was taken from them: as many as a ring may have."""
JUDGED_MAX = 65_536
"""Names of which it is remembered whether they are owned, so that a put does not have to hash its topic."""


def newest(descriptors: Iterable[GroupDescriptor]) -> tuple[GroupDescriptor, ...]:
    """Of descriptors in the order in which they were heard of as many as are remembered, those of groups that left
    behind.

    >>> groups = [GroupDescriptor(b"a", ()), GroupDescriptor(b"b", (), left=True), GroupDescriptor(b"c", ())]
    >>> [descriptor.group for descriptor in newest(groups)]
    [b'a', b'c', b'b']
    """
    known = list(descriptors)
    here = [descriptor for descriptor in known if not descriptor.left]
    left = [descriptor for descriptor in known if descriptor.left]
    return (*here[-CONTACTS_MAX:], *left[-CONTACTS_MAX:])


class HandingOff(msgspec.Struct, frozen=True, array_like=True):
    """Ranges that were given and are not yet forgotten."""

    ranges: KeyRanges
    target: GroupDescriptor
    number: int
    """Which transfer of this group it is."""


class TakingOver(msgspec.Struct, frozen=True, array_like=True):
    """Ranges that are being taken from another group."""

    source: bytes
    ranges: KeyRanges
    number: int = 0
    """The number of the transfer; 0 as long as the source has not given anything, and either side may still turn
    back."""
    mark: Mark = START
    """Everything before this place in the list of the transfer's facts is here."""


class RingState(msgspec.Struct, frozen=True, array_like=True):
    """An `Ownership` as a snapshot holds it."""

    ranges: KeyRanges
    handing_off: HandingOff | None
    taking_over: TakingOver | None
    handed_off: tuple[Gone, ...]
    contacts: tuple[GroupDescriptor, ...]
    transfers: int
    taken_over: dict[bytes, int]
    strays: tuple[Key, ...] = ()
    brought: KeyRanges = ()
    doors: tuple[str, ...] = ()
    commits: CommitsState = CommitsState()
    departs: bool = False


class Ownership:
    """The ranges of a group, those on their way, and whom it knows."""

    def __init__(self, ranges: Iterable[KeyRange] = ()) -> None:
        self.ranges: KeyRanges = joined(ranges)
        """What is owned: served to clients, and nowhere else."""
        self.handing_off: HandingOff | None = None
        self.taking_over: TakingOver | None = None
        self.handed_off: tuple[Gone, ...] = ()
        """Ranges that were given away, the newest last: hints where to ask."""
        self.contacts: tuple[GroupDescriptor, ...] = ()
        """Groups of the ring, so that one that starts again finds it, and those that left, so it waits for none."""
        self.transfers = 0
        """How many times something was given."""
        self.taken_over: dict[bytes, int] = {}
        """group -> the number of its transfer that was taken last."""
        self.strays: dict[Key, None] = {}
        """Points of what this group had before it joined, and which it has not taken from their owners yet."""
        self.brought: KeyRanges = ()
        """Strays that were taken, to be handed on to the owners of what lies around them."""
        self.doors: tuple[str, ...] = ()
        """Nodes of the ring that a group joins which brings something."""
        self.commits = Commits()
        """Commits over several groups, as far as this one has to do with them."""
        self.departs = False
        """Whether the group is to leave its ring, or has left."""
        self._judged: dict[str, bool] = {}

    @property
    def gone(self) -> tuple[Gone, ...]:
        """Where to ask for what is not owned any more, the newest last."""
        if self.handing_off is None:
            return self.handed_off
        return (*self.handed_off, *(Gone(key_range, self.handing_off.target) for key_range in self.handing_off.ranges))

    @property
    def has_left(self) -> bool:
        """Whether everything that was ever owned here is another group's, and nothing is on its way."""
        moves = self.handing_off is not None or self.taking_over is not None
        return bool(self.transfers) and not self.ranges and not moves and not self.strays

    @property
    def confirmed(self) -> int:
        """Up to which of our transfers all have been taken, as far as is known here."""
        return self.transfers if self.handing_off is None else self.transfers - 1

    def owns_topic(self, name: str) -> bool:
        """Whether a topic is served here."""
        known = self._judged.get(name)
        if known is None:
            if len(self._judged) >= JUDGED_MAX:
                self._judged.clear()
            known = self._judged[name] = self.serves(point_of(name))
        return known

    def serves(self, point: Key) -> bool:
        """Whether a point is served here: it is owned, or a stray."""
        return point in self.strays or owns(self.ranges, point)

    def owns_home(self, client: str) -> bool:
        """Whether the epochs of a client are given here."""
        return self.serves(home_of(client))

    def check_owned(self, names: Iterable[str]) -> None:
        """Moved if one of these topics is not owned."""
        for name in names:
            if not self.owns_topic(name):
                raise Moved(f"The topic {name!r} is not owned here: ask who owns it.")

    def check_topics(self, names: Iterable[str]) -> None:
        """Moved if one of these topics is not owned; InvalidRequest if they could come apart."""
        together: bytes | None = None
        first = ""
        for name in names:
            if not self.owns_topic(name):
                raise Moved(f"The topic {name!r} belongs to another group: ask that one.")
            if first and name != first:
                together = together or point_of(first)
                if point_of(name) != together:
                    raise InvalidRequest(
                        f"The topics {first!r} and {name!r} cannot be used in one request, because different groups of "
                        "the ring may own them: give both the same tag in braces, as in '{shop}orders' and "
                        "'{shop}refunds'."
                    )
            first = first or name

    def check_home(self, client: str) -> None:
        """Moved if the epochs of a client are given elsewhere."""
        if not self.owns_home(client):
            raise Moved(f"The name {client!r} has its home in another group: ask that one.")

    # How it changes. Each is part of a command that has been checked.

    def bring(self, points: Iterable[Key], doors: tuple[str, ...]) -> None:
        """This group had something at these points before it joined the ring of these nodes."""
        self.strays, self.doors = dict.fromkeys(points), doors
        self._judged.clear()

    def strays_in(self, ranges: KeyRanges) -> KeyRanges:
        """The strays in some ranges: nobody else may have a topic there."""
        is_in = finder(ranges)
        return spots(point for point in self.strays if is_in(point))

    def hand_off(self, ranges: KeyRanges, target: GroupDescriptor) -> None:
        """These ranges are owned no more."""
        self.transfers += 1
        self.handing_off = HandingOff(ranges, target, self.transfers)
        self.brought = without(self.brought, ranges)
        self._become(without(self.ranges, ranges))

    def drop(self) -> None:
        """The transfer has been taken."""
        self.handed_off, self.handing_off = self.gone[-HANDED_OFF_MAX:], None

    def take_over(self) -> KeyRanges:
        """What was being taken is owned."""
        taking_over = self.taking_over
        assert taking_over is not None and taking_over.number
        assert not common(self.ranges, taking_over.ranges), "what is taken was owned by somebody else"
        self.taken_over.pop(taking_over.source, None)
        self.taken_over[taking_over.source] = taking_over.number
        while len(self.taken_over) > TAKEN_MAX:
            del self.taken_over[next(iter(self.taken_over))]
        left = ((gone.descriptor, without((gone.key_range,), taking_over.ranges)) for gone in self.handed_off)
        self.handed_off = tuple(Gone(key_range, descriptor) for descriptor, ranges in left for key_range in ranges)[
            -HANDED_OFF_MAX:
        ]
        self.taking_over = None
        strays = self.strays_in(taking_over.ranges)
        if strays == taking_over.ranges:
            self.brought = joined((*self.brought, *strays))
        is_in = finder(taking_over.ranges)
        self.strays = {point: None for point in self.strays if not is_in(point)}
        self._become(joined((*self.ranges, *taking_over.ranges)))
        return taking_over.ranges

    def know(self, descriptors: Iterable[GroupDescriptor]) -> None:
        """These groups are in the ring, or have been."""
        self.contacts = newest(descriptors)

    def knows_left(self, group: bytes) -> bool:
        """Whether it is written down that a group has left."""
        return any(descriptor.left and descriptor.group == group for descriptor in self.contacts)

    def _become(self, ranges: KeyRanges) -> None:
        self.ranges = ranges
        self._judged.clear()

    # Snapshots.

    def state(self) -> RingState:
        """Everything, for a snapshot."""
        return RingState(
            self.ranges,
            self.handing_off,
            self.taking_over,
            self.handed_off,
            self.contacts,
            self.transfers,
            dict(self.taken_over),
            tuple(self.strays),
            self.brought,
            self.doors,
            self.commits.state(),
            self.departs,
        )

    @classmethod
    def restore(cls, state: RingState) -> Ownership:
        """From what `state` gave."""
        ring = cls(state.ranges)
        ring.handing_off, ring.taking_over, ring.handed_off = state.handing_off, state.taking_over, state.handed_off
        ring.contacts, ring.transfers, ring.taken_over = state.contacts, state.transfers, dict(state.taken_over)
        ring.strays, ring.brought, ring.doors = dict.fromkeys(state.strays), state.brought, state.doors
        ring.commits = Commits(state.commits)
        ring.departs = state.departs
        return ring
