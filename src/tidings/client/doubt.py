"""What ended as Unavailable: requests that may have been stored, and things that were never sent.

An outbox keeps both, so that they can be sent again as they were until something else is put to the same
topic. Here is what belongs together among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidings.client.parcels import Entry, Shipment, Together


def related(
    shipments: Sequence[Shipment], unsent: Sequence[Entry], topics: Iterable[str]
) -> tuple[list[Shipment], list[Entry]]:
    """What is in doubt or unsent for these topics, and for others that are tied to them by a common put."""
    tied = dict.fromkeys(topics)
    known = 0
    while known < len(tied):
        known = len(tied)
        for names in [shipment.lane.topics for shipment in shipments] + [entry.topics for entry in unsent]:
            if any(topic in tied for topic in names):
                tied.update(dict.fromkeys(names))
    return (
        [shipment for shipment in shipments if any(topic in tied for topic in shipment.lane.topics)],
        [entry for entry in unsent if any(topic in tied for topic in entry.topics)],
    )


def with_entry(
    shipments: Sequence[Shipment], unsent: Sequence[Entry], entry: Entry
) -> tuple[list[Shipment], list[Entry]]:
    """What has to be sent again for this entry's sake, in its order."""
    if entry.topics:
        return related(shipments, unsent, entry.topics)
    # A transaction that only took is tied to nothing.
    return [each for each in shipments if entry in each.entries], [each for each in unsent if each is entry]


def holds_transaction(shipments: Iterable[Shipment]) -> bool:
    """Whether a transaction is among them."""
    return any(isinstance(shipment.entries[0], Together) for shipment in shipments)
