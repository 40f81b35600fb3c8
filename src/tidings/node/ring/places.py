"""Where on the ring a request belongs: with the owner of its topics, at the home of its client, or everywhere."""

from __future__ import annotations

from collections.abc import Collection

from tidings.protocols.broker import bulk, messages
from tidings.protocols.broker.messages import AnyRequest
from tidings.protocols.broker.staged import sink_key
from tidings.protocols.chord.identifiers import Key
from tidings.protocols.ring.key_ranges import client_of, home_of, owns, point_of
from tidings.protocols.ring.ownership import Ownership
from tidings.protocols.ring.subjects import topics_of

TOGETHER = (messages.Put, messages.Commit, messages.Ack)
"""Requests whose topics may belong to several groups."""


def is_everywhere(request: AnyRequest) -> bool:
    """Whether every group of the ring has to be asked."""
    match request:
        case messages.AskTopics(_, None) | messages.AskGroups(_, None):
            return True
    return isinstance(request, messages.AskSubscriptions | messages.AskSubscribers | messages.AskStatus | bulk.Discard)


def is_coordinated(ring: Ownership, request: AnyRequest) -> bool:
    """Whether a request that is about topics of several groups is for this group: it owns the home of its client."""
    return isinstance(request, TOGETHER) and owns(ring.ranges, home_of(request.client))


def publishes_any(request: AnyRequest, points: Collection[Key]) -> bool:
    """Whether a request publishes what may be staged for topics at some points."""
    if not points or not isinstance(request, bulk.Publish):
        return False
    written = [named for named in request.stages if named.count]
    return any(not named.topics or any(point_of(topic) in points for topic in named.topics) for named in written)


def points_of(request: AnyRequest) -> tuple[Key, ...]:
    """The points that the owner of a request must own: one, unless its topics lie apart.

    >>> len(points_of(messages.Subscribe(1, "alice", 1, ("{shop}orders", "{shop}refunds"))))
    1
    >>> len(points_of(messages.Subscribe(1, "alice", 1, ("orders", "refunds"))))
    2
    """
    if isinstance(request, bulk.Publish):
        return (home_of(client_of(sink_key(request.query, request.sink))),)
    topics = topics_of(request)
    if topics:
        return (point_of(topics[0]),) if len(topics) == 1 else tuple(dict.fromkeys(map(point_of, topics)))
    client = getattr(request, "client", None)
    return (home_of(client),) if client is not None else ()
