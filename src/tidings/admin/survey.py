"""What all nodes of a ring say, put together: which groups there are, who leads them, and what each owns.

Nodes are asked one after another while the ring goes on, so what they say is the truth of different moments: a ring in
which ranges move may look as if a part of it had no owner, or two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import msgspec

from tidings.admin.asking import Asking
from tidings.errors import Unavailable
from tidings.protocols.broker import operators
from tidings.protocols.ring.key_ranges import WHOLE, KeyRange, KeyRanges, common, joined, without

LOOK_SECONDS = 2.0
CIRCLE = 1 << 256


class GroupView(msgspec.Struct, frozen=True):
    """A group of a ring, by the word of its leader, or else by what others know of it."""

    group: str
    """Its name, in hexadecimal digits."""
    leader: str
    """The member that leads, if it answers and says so itself; "" if none does."""
    members: tuple[str, ...]
    silent: tuple[str, ...]
    """Members that do not answer."""
    ranges: KeyRanges
    share: float
    """Of the circle, from 0 to 1."""
    topics: int


class RingView(msgspec.Struct, frozen=True):
    """All groups that have not left, and what is wrong with them."""

    groups: tuple[GroupView, ...]
    problems: tuple[str, ...]
    dissemination: Mapping[str, str] = {}
    """How each node that answers hands bodies on, where it says so."""

    @property
    def whole(self) -> bool:
        """Whether all members are up and of one mind, every group has a leader, and every point one owner."""
        return not self.problems

    @property
    def covered(self) -> bool:
        """Whether every point of the circle has one owner, no matter which of its members are away."""
        return joined(key_range for group in self.groups for key_range in group.ranges) == (WHOLE,) and not _is_doubled(
            self.groups
        )

    def group_of(self, name: str) -> GroupView | None:
        """The group whose name begins so, or that has a member at this address."""
        found = [each for each in self.groups if each.group.startswith(name) or name in each.members]
        return found[0] if len(found) == 1 else None


def share_of(ranges: Iterable[KeyRange]) -> float:
    """How much of the circle some ranges are.

    >>> share_of([WHOLE]), share_of([]), share_of([KeyRange(bytes(32), bytes([64]) + bytes(31))])
    (1.0, 0.0, 0.25)
    """
    sizes = [
        (int.from_bytes(key_range.end) - int.from_bytes(key_range.start)) % CIRCLE or CIRCLE for key_range in ranges
    ]
    return sum(sizes) / CIRCLE


def look(asking: Asking, seconds: float = LOOK_SECONDS) -> RingView:
    """Asks the nodes that are known for the others, and then every one of them."""
    said: dict[str, operators.Ring | None] = {}
    wave = asking.addresses
    while wave:
        said |= asking.ask_all(wave, operators.AskRing(1), operators.Ring, seconds)
        answers = [answer for answer in said.values() if answer is not None]
        groups = [group for answer in answers for group in answer.groups if not group.left]
        wave = [each for each in dict.fromkeys(node for group in groups for node in group.members) if each not in said]
    if not any(said.values()):
        raise Unavailable(f"No node of a ring answers at {', '.join(asking.addresses)}: is it running there?")
    return _put_together(said)


def _put_together(said: dict[str, operators.Ring | None]) -> RingView:
    known: dict[str, operators.RingGroup] = {}
    left: dict[str, None] = {}
    for answer in said.values():
        for group in answer.groups if answer is not None else ():
            known.setdefault(group.group, group)
            if group.left:
                left[group.group] = None
    groups = [_group_view(group, said) for name, group in known.items() if name not in left]
    heard = joined(key_range for group in groups if group.leader for key_range in group.ranges)
    groups = [group for group in groups if not _is_gone(group, heard)]
    how = {address: answer.dissemination for address, answer in said.items() if answer is not None}
    how = {address: kind for address, kind in how.items() if kind}
    return RingView(tuple(groups), (*_problems(groups), *_contradictions(how)), how)


def _is_gone(group: GroupView, heard: KeyRanges) -> bool:
    """Whether a group of which nobody answers has left, as not every node has heard: others own all that it had."""
    return group.silent == group.members and not without(group.ranges, heard)


def _group_view(known: operators.RingGroup, said: dict[str, operators.Ring | None]) -> GroupView:
    """A leader speaks for its group; without one, the member that knows most does."""
    best, topics, leader = known, 0, ""
    for address, answer in said.items():
        if answer is None or answer.group != known.group:
            continue
        own = next((group for group in answer.groups if group.group == known.group), None)
        if own is not None and (own.leader == address or not leader):
            best, topics = own, answer.topics
            leader = address if own.leader == address else leader
    ranges = tuple(KeyRange(start, end) for start, end in best.ranges)
    silent = tuple(address for address in best.members if said.get(address) is None)
    return GroupView(known.group, leader, best.members, silent, ranges, share_of(ranges), topics)


def _problems(groups: Sequence[GroupView]) -> Iterable[str]:
    for group in groups:
        for address in group.silent:
            yield f"{address} does not answer"
        if not group.leader:
            yield f"nobody leads the group {group.group[:8]}"
    if _is_doubled(groups):
        yield "two groups say that they own the same"
    owned = joined(key_range for group in groups for key_range in group.ranges)
    if owned != (WHOLE,):
        yield f"{1 - share_of(owned):.1%} of the circle has no owner at the moment"


def _contradictions(how: Mapping[str, str]) -> Iterable[str]:
    """Nodes that hand bodies on in another way than most: these reach them only when they are fetched."""
    usual, _ = Counter(how.values()).most_common(1)[0] if how else ("", 0)
    for address, kind in how.items():
        if kind != usual:
            yield f"{address} disseminates by {kind}, and others by {usual}: start all with the same --dissemination"


def _is_doubled(groups: Sequence[GroupView]) -> bool:
    return any(common(one.ranges, other.ranges) for one, other in combinations(groups, 2))
