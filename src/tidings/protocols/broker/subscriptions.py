"""Durable subscriptions: how far a client has dealt with one topic or with several.

`cursors` moves only by journaled acknowledgements and only forward. `reading` and `sent` remember what a
reader may have been given without acknowledging it, so that a later reader can be told `redelivered`.
"""

from __future__ import annotations

import msgspec

from tidings.errors import InvalidRequest, NotSubscribed

SubscriptionKey = tuple[str, tuple[str, ...]]
"""The client's name and its topics, sorted."""


class Subscription(msgspec.Struct):
    client: str
    topics: tuple[str, ...]
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

    @property
    def key(self) -> SubscriptionKey:
        return (self.client, self.topics)

    def check_created(self, epoch: int) -> None:
        """Refuses what is meant for an earlier subscription on the same topics; 0 is meant for any."""
        if 0 < epoch != self.created_epoch > 0:
            raise NotSubscribed(
                f"{self.client!r} has subscribed to {', '.join(map(repr, self.topics))} again since: "
                "acknowledge what the new one delivers."
            )


def canonical(topics: tuple[str, ...]) -> tuple[str, ...]:
    """The topics of a subscription in the one order that names it."""
    if not topics:
        raise InvalidRequest("A subscription needs at least one topic: name one.")
    return topics if len(topics) == 1 else tuple(sorted(set(topics)))
