"""A ring as a node tells operators of it."""

from __future__ import annotations

from itertools import islice

from tidings.errors import InvalidRequest, Unauthorized
from tidings.node.ring.leading import Leading
from tidings.node.ring.roles import RingNode
from tidings.protocols.broker import operators
from tidings.protocols.broker.operators import Owner, RingGroup
from tidings.protocols.broker.rights import check_right
from tidings.protocols.events import Received
from tidings.protocols.ring.directory import Directory
from tidings.protocols.ring.handoff_source import CLASHES_MAX
from tidings.protocols.ring.key_ranges import common, point_of, spots
from tidings.protocols.ring.ownership import Ownership
from tidings.protocols.ring.transfer import topics_in


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


def answer_operator(node: RingNode, leading: Leading | None, ring: Ownership | None, received: Received) -> bool:
    """Answers what operators ask of a ring; False if it is something else."""
    message, peer, engine = received.message, received.peer, node.engine
    match message:
        case operators.AskRing(request):
            engine.reply(peer, _describe(node, ring, request))
        case operators.AskOwner(request, topic):
            owner = owner_of(node.directory, request, topic)
            if not owner.group:
                node.seek(engine.now_ms, point_of(topic))
            engine.reply(peer, owner)
        case operators.AskHeld(request, points) if leading is not None and ring is not None:
            held = topics_in(node.group.state.machine, common(ring.ranges, spots(points)))
            engine.reply(peer, operators.Held(request, tuple(islice(held, CLASHES_MAX))))
        case operators.LeaveRing(request) if leading is not None:
            try:
                check_right(engine.settings.admins, received.user, message)
                engine.run(leading.leave(peer, request))
            except (InvalidRequest, Unauthorized) as error:
                engine.refuse(peer, request, error)
        case _:
            return False
    return True


def _describe(node: RingNode, ring: Ownership | None, request: int) -> operators.Ring:
    names = node.group.state.machine.topics
    topics = sum(map(ring.owns_topic, names)) if ring is not None else 0
    if ring is not None and ring.strays:
        topics -= sum(point_of(name) in ring.strays for name in names)
    own, how = node.group.identity.group.hex(), node.settings.dissemination
    return operators.Ring(request, node.address, own, topics, groups_of(node.directory), how)
