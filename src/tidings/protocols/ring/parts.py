"""The parts of a subscription whose topics may have different owners: one for each tag.

What lies at one point of the circle has one owner at any time, and moves as one. So a part is what lies at one point,
and neither a range that moves nor a group that comes or goes changes what the parts are. `broker.subscriptions` says
what a broker does with a part.
"""

from __future__ import annotations

import msgspec

from tidings.protocols.broker.messages import Acknowledgement
from tidings.protocols.broker.subscriptions import canonical
from tidings.protocols.chord.identifiers import Key
from tidings.protocols.ring.key_ranges import point_of


def parts_of(topics: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The topics of each part, in the order of their first topics.

    >>> parts_of(("sport", "{a}y", "news", "{a}x"))
    (('news',), ('sport',), ('{a}x', '{a}y'))
    """
    parts: dict[Key, list[str]] = {}
    for topic in canonical(topics):
        parts.setdefault(point_of(topic), []).append(topic)
    return tuple(map(tuple, parts.values()))


def whole_of(parts: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """What names the subscription in each of its parts; nothing if there is only one, which is all of it."""
    return tuple(topic for part in parts for topic in part) if len(parts) > 1 else ()


def divided(acknowledgement: Acknowledgement) -> tuple[Acknowledgement, ...]:
    """An acknowledgement of a subscription as those of its parts: of the parts about which it says something.

    >>> from tidings.protocols.broker.messages import Position
    >>> for each in divided(Acknowledgement(("a", "b"), (Position("b", 7),))): print(each.topics, each.whole)
    ('b',) ('a', 'b')
    """
    parts = parts_of(acknowledgement.topics)
    if len(parts) == 1:
        return (acknowledgement,)
    whole = whole_of(parts)
    of_parts = []
    for part in parts:
        # What is no topic of it is for the first part to refuse.
        positions = tuple(
            each
            for each in acknowledgement.positions
            if each.topic in part or (part is parts[0] and each.topic not in whole)
        )
        if positions:
            changed = msgspec.structs.replace(acknowledgement, topics=part, positions=positions, whole=whole)
            of_parts.append(changed)
    return tuple(of_parts) or (msgspec.structs.replace(acknowledgement, topics=parts[0], whole=whole),)
