"""A ring as a node tells operators of it."""

from __future__ import annotations

from tidings.protocols.broker.operators import Owner, RingGroup
from tidings.protocols.ring.directory import Directory
from tidings.protocols.ring.key_ranges import point_of


def groups_of(directory: Directory) -> tuple[RingGroup, ...]:
    """All groups that are known, in the order of their ids."""
    groups = [
        RingGroup(
            descriptor.group.hex(),
            descriptor.members,
            descriptor.leader,
            tuple((key_range.start, key_range.end) for key_range in directory.ranges_of(descriptor.group)),
            descriptor.left,
        )
        for descriptor in directory.descriptors()
    ]
    return tuple(sorted(groups, key=lambda group: group.group))


def owner_of(directory: Directory, request: int, topic: str) -> Owner:
    """Where a topic is, and what is known of how it was found; nobody, if it has to be looked for first."""
    point = point_of(topic)
    descriptor = directory.find(point)
    if descriptor is None:
        return Owner(request, topic, point.hex(), "", "", ())
    return Owner(request, topic, point.hex(), descriptor.group.hex(), descriptor.leader, descriptor.members)
