"""Durable subscriptions: how far a client has dealt with one topic or with several.

`cursors` moves only by journaled acknowledgements and only forward. `reading` and `sent` remember what a
reader may have been given without acknowledging it, so that a later reader can be told `redelivered`.

**Parts.** In a ring, topics that do not share a tag may have different owners at any time. A subscription to such
topics has a part for each tag: a record of its own with the topics of that tag, which lives with their owner, moves
with them, and is acknowledged, read and ended by itself. The parts have an order, that of `whole`. They are made in
this order and ended in the reverse one, so those that are there are always the first ones.

**Once.** A message that was put to topics of several parts comes through the first of these. The others leave it to
that one, which is older: of a put that they find after they were made, the first one has its copy too, or it began
before the subscription was there. What a topic held before its part was made comes through this topic in any case.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tidings.errors import InvalidRequest, NotSubscribed

SubscriptionKey = tuple[str, tuple[str, ...]] | tuple[str, tuple[str, ...], tuple[str, ...]]
"""The client's name and its topics, sorted; of a part, also those of the whole."""


def key_of(client: str, topics: tuple[str, ...], whole: tuple[str, ...] = ()) -> SubscriptionKey:
    """The key of a subscription, or of a part of one."""
    return (client, topics, whole) if whole else (client, topics)


class Subscription(msgspec.Struct):
    client: str
    topics: tuple[str, ...]
    """All topics; of a part, those that it is about."""
    cursors: dict[str, int]
    """topic -> the offset of the first message not yet acknowledged."""
    starts: dict[str, int]
    """topic -> the offset of the first message that was meant for this subscription."""
    reader_epoch: int = 0
    """The session that read last, 0 when none ever did."""
    reading: bool = False
    """That session has not said how far it was served (it lives, or it ended without a word)."""
    sent: dict[str, int] = {}
    """topic -> how far readers had been served when that was last written down."""
    created_epoch: int = 0
    """The session that created it; 0 if a release before 0.2 did."""
    whole: tuple[str, ...] = ()
    """Of a part: all topics of the subscription, those of one part after the other. Otherwise empty."""
    made: dict[str, int] = {}
    """Of a part: topic -> the offset that was the next one when the part was made."""

    @property
    def key(self) -> SubscriptionKey:
        return key_of(self.client, self.topics, self.whole)

    @property
    def all_topics(self) -> tuple[str, ...]:
        """The topics that the client knows it by, sorted."""
        return tuple(sorted(self.whole)) if self.whole else self.topics

    @property
    def earlier(self) -> tuple[str, ...]:
        """The topics of the parts before this one."""
        return self.whole[: self.whole.index(self.topics[0])] if self.whole else ()

    def leaves(self, topic: str, offset: int, places: Iterable[str]) -> bool:
        """Whether what lies at an offset, and went to all of these places, comes through an earlier part."""
        if offset < self.made.get(topic, 0):
            return False
        earlier = self.earlier
        return any(place in earlier for place in places)

    def check_created(self, epoch: int) -> None:
        """Refuses what is meant for an earlier subscription on the same topics; 0 is meant for any."""
        if 0 < epoch != self.created_epoch > 0:
            raise NotSubscribed(
                f"{self.client!r} has subscribed to {', '.join(map(repr, self.topics))} again since: "
                "acknowledge what the new one delivers."
            )


def canonical(topics: tuple[str, ...], whole: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The topics of a subscription in the one order that names it; those of a part follow each other in the whole."""
    if not topics:
        raise InvalidRequest("A subscription needs at least one topic: name one.")
    ordered = topics if len(topics) == 1 else tuple(sorted(set(topics)))
    if whole:
        first = whole.index(ordered[0]) if ordered[0] in whole else len(whole)
        if whole[first : first + len(ordered)] != ordered:
            raise InvalidRequest("These topics are no part of that subscription: name those of one tag.")
    return ordered
