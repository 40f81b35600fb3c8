"""The credit of a stream whose topics have several owners.

What the client grants for all topics together is shared out. Every part has room for its share of what is left, and for
one message at least; when it has used half of that, it gets its share of what is left by then. What a part without
messages holds is not taken back, so a client may be sent twice what it has granted, and one message more for each part.
Its own bounds are wider.
"""

from __future__ import annotations

import msgspec

from tidings.protocols.broker import messages
from tidings.protocols.broker.messages import Position
from tidings.protocols.ring.parts import parts_of, whole_of


class Share:
    """What one part of a stream has been granted and has sent, counted from the beginning of the stream."""

    __slots__ = ("bytes_limit", "bytes_sent", "messages_limit", "messages_sent", "positions", "topics")

    def __init__(self, topics: tuple[str, ...]) -> None:
        self.topics = topics
        self.positions: dict[str, int] = {}
        self.messages_limit = self.messages_sent = 0
        self.bytes_limit = self.bytes_sent = 0


class ApartStream:
    """A client's stream that several owners serve."""

    def __init__(self, flow: messages.Flow, user: str | None) -> None:
        self._flow = flow
        self.user = user
        parts = parts_of(flow.topics)
        self.whole = whole_of(parts)
        self._shares = [Share(part) for part in parts]
        self._of = {topic: share for share in self._shares for topic in share.topics}
        self._messages_limit = self._bytes_limit = 0

    def grant(self, flow: messages.Flow) -> list[messages.Flow]:
        """What the client grants, as a grant to each part."""
        self._flow = flow
        self._messages_limit = max(self._messages_limit, flow.messages)
        self._bytes_limit = max(self._bytes_limit, flow.size_bytes)
        for position in flow.positions:
            if position.topic in self._of:
                positions = self._of[position.topic].positions
                positions[position.topic] = max(positions.get(position.topic, 0), position.offset)
        for share in self._shares:
            self._raise(share)
        return [self._flow_of(share, flow.request) for share in self._shares]

    def count(self, delivery: messages.Delivery, size_bytes: int) -> messages.Flow | None:
        """A delivery passes, as the client will count it; what to grant its part now, if it is time."""
        share = self._of.get(delivery.topic)
        if share is None:
            return None
        share.positions[delivery.topic] = max(share.positions.get(delivery.topic, 0), delivery.next_offset)
        if not size_bytes:  # What is only passed over costs no credit.
            return None
        share.messages_sent += delivery.next_offset - delivery.since
        share.bytes_sent += size_bytes
        return self._flow_of(share, 0) if self._raise(share) else None

    def _raise(self, share: Share) -> bool:
        """Grants a part its share of what is left, if that is worth a word."""
        messages_room = self._messages_limit - sum(each.messages_sent for each in self._shares)
        bytes_room = self._bytes_limit - sum(each.bytes_sent for each in self._shares)
        if messages_room <= 0 or bytes_room <= 0:
            return False
        messages_share, bytes_share = (-(-room // len(self._shares)) for room in (messages_room, bytes_room))
        messages_more = share.messages_sent + messages_share - share.messages_limit
        bytes_more = share.bytes_sent + bytes_share - share.bytes_limit
        if messages_more < max(1, messages_share // 2) and bytes_more < max(1, bytes_share // 2):
            return False
        share.messages_limit += max(0, messages_more)
        share.bytes_limit += max(0, bytes_more)
        return True

    def _flow_of(self, share: Share, request: int) -> messages.Flow:
        return msgspec.structs.replace(
            self._flow,
            request=request,
            topics=share.topics,
            positions=tuple(Position(topic, offset) for topic, offset in share.positions.items()),
            messages=share.messages_limit,
            size_bytes=share.bytes_limit,
            whole=self.whole,
        )
