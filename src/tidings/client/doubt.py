"""What ended as Unavailable: requests that may have been stored, and things that were never sent.

Both are kept so that they can be sent again as they were, until something else is put to the same topic.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidings.client.parcels import Entry, Shipment, Together


class Doubt:
    """The requests and things in doubt of one outbox, in their order."""

    def __init__(self) -> None:
        self.shipments: list[Shipment] = []
        self.unsent: list[Entry] = []

    def __bool__(self) -> bool:
        return bool(self.shipments or self.unsent)

    def concerns(self, topic: str) -> bool:
        """Whether something that may be stored in the topic has not been answered."""
        return any(topic in shipment.lane.topics for shipment in self.shipments)

    def holds_transaction(self, topics: Iterable[str]) -> bool:
        """Whether a transaction in doubt is tied to these topics."""
        return any(isinstance(shipment.entries[0], Together) for shipment in self._related(topics)[0])

    def abandon(self, topics: tuple[str, ...]) -> bool:
        """Nothing for these topics can be sent again any more; whether any of it may be stored."""
        shipments = [each for each in self.shipments if any(topic in each.lane.topics for topic in topics)]
        for entry in [entry for shipment in shipments for entry in shipment.entries] + self.unsent:
            entry.gone = entry.gone or any(topic in entry.topics for topic in topics)
        self.shipments = [shipment for shipment in self.shipments if shipment not in shipments]
        self.unsent = [entry for entry in self.unsent if not entry.gone]
        return bool(shipments)

    def take(self, topics: Iterable[str], entry: Entry | None) -> tuple[list[Shipment], list[Entry]]:
        """Takes out what is in doubt for these topics and for others that are tied to them."""
        shipments, unsent = self._related(topics)
        if entry is not None and not entry.topics:  # A transaction that only took is tied to nothing.
            shipments = [shipment for shipment in self.shipments if entry in shipment.entries]
            unsent = [each for each in self.unsent if each is entry]
        self.shipments = [shipment for shipment in self.shipments if shipment not in shipments]
        self.unsent = [each for each in self.unsent if each not in unsent]
        return shipments, unsent

    def _related(self, topics: Iterable[str]) -> tuple[list[Shipment], list[Entry]]:
        tied = dict.fromkeys(topics)
        known = 0
        while known < len(tied):
            known = len(tied)
            for names in [shipment.lane.topics for shipment in self.shipments] + [each.topics for each in self.unsent]:
                if any(topic in tied for topic in names):
                    tied.update(dict.fromkeys(names))
        return (
            [shipment for shipment in self.shipments if any(topic in tied for topic in shipment.lane.topics)],
            [entry for entry in self.unsent if any(topic in tied for topic in entry.topics)],
        )
