"""Where on the ring a request belongs: with the owner of its topics, at the home of its client, or everywhere."""

from __future__ import annotations

from tidings.errors import InvalidRequest
from tidings.protocols.broker import bulk, messages
from tidings.protocols.broker.messages import AnyRequest
from tidings.protocols.chord.identifiers import Key
from tidings.protocols.ring.key_ranges import home_of, point_of
from tidings.protocols.ring.subjects import topics_of

STAGING = (bulk.Stage, bulk.Publish, bulk.Discard)
APART = (
    "The topics of one request must lie together on a ring: give them the same tag in braces, as in '{shop}orders' and "
    "'{shop}refunds', or send a request for each."
)


def is_everywhere(request: AnyRequest) -> bool:
    """Whether every group of the ring has to be asked."""
    match request:
        case messages.AskTopics(_, None) | messages.AskGroups(_, None):
            return True
    return isinstance(request, messages.AskSubscriptions | messages.AskSubscribers | messages.AskStatus)


def points_of(request: AnyRequest) -> tuple[Key, ...]:
    """The points that the owner of a request must own: one, unless its topics lie apart.

    >>> len(points_of(messages.Subscribe(1, "alice", 1, ("{shop}orders", "{shop}refunds"))))
    1
    >>> len(points_of(messages.Subscribe(1, "alice", 1, ("orders", "refunds"))))
    2
    """
    if isinstance(request, STAGING):
        raise InvalidRequest(
            "A ring takes no staged writes, which Spark's sink makes: write to a broker or to one replica group."
        )
    topics = topics_of(request)
    if topics:
        return (point_of(topics[0]),) if len(topics) == 1 else tuple(dict.fromkeys(map(point_of, topics)))
    client = getattr(request, "client", None)
    return (home_of(client),) if client is not None else ()
