"""A batch of a consumer group that has come and is decoded when it is about to be handed out."""

from __future__ import annotations

from collections.abc import Sequence

from tidings.client.in_flight import InFlightBatch
from tidings.client.link import Frame
from tidings.errors import ProtocolError
from tidings.message import Columns, Share
from tidings.wire.codec import decode_columns


class Unopened:
    """A batch that nobody has looked into yet."""

    __slots__ = ("batch", "bodies", "offsets")

    def __init__(self, batch: InFlightBatch, offsets: Sequence[int], bodies: Sequence[Frame]) -> None:
        self.batch = batch
        self.offsets = offsets
        self.bodies = bodies

    def open(self, topic: str) -> list[Share]:
        """The messages inside, a share for each body."""
        batches: list[Columns] = [decode_columns(body) for body in self.bodies]
        if sum(len(columns.values) for columns in batches) != len(self.offsets):
            raise ProtocolError(
                f"A batch of {topic!r} was announced with {len(self.offsets)} messages and holds others: "
                "is that a tidings broker?"
            )
        shares = []
        start = 0
        for columns in batches:
            end = start + len(columns.values)
            if end > start:
                shares.append(Share(topic, self.offsets[start:end], columns, self.batch.attempt))
            start = end
        return shares
