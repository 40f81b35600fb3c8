"""A ring as a node tells operators of it."""

from __future__ import annotations

from tidings.protocols.broker.operators import Owner, RingGroup
from tidings.protocols.ring.arcs import point_of
from tidings.protocols.ring.directory import Directory


def groups_of(directory: Directory) -> tuple[RingGroup, ...]:
    """All groups that are known, in the order of their ids."""
    groups = [
        RingGroup(
            card.group.hex(),
            card.members,
            card.leader,
            tuple((arc.start, arc.end) for arc in directory.arcs_of(card.group)),
            card.left,
        )
        for card in directory.cards()
    ]
    return tuple(sorted(groups, key=lambda group: group.group))


def owner_of(directory: Directory, request: int, topic: str) -> Owner:
    """Where a topic is, and what is known of how it was found; nobody, if it has to be looked for first."""
    point = point_of(topic)
    card = directory.find(point)
    if card is None:
        return Owner(request, topic, point.hex(), "", "", ())
    return Owner(request, topic, point.hex(), card.group.hex(), card.leader, card.members)
