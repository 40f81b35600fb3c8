"""Is this the bus that the lake was made from?

A bus has no name of its own, but its messages do not change: the last message that bronze has of a topic must be the
one that the bus has at that offset. A lake that is ahead of the bus, or has other messages, belongs to another bus, or
to this one before its folder was replaced.
"""

from __future__ import annotations

from typing import Any

import pyarrow.dataset as ds
from deltalake import DeltaTable

from tidings.client.bus import Bus
from tidings.errors import InvalidRequest
from tidings.pipeline.bronze import positions
from tidings.pipeline.lake import Lake

TOPICS_LOOKED_AT = 3
ADVICE = "give the bus that it was made from, or another folder with --lake"


def check_origin(lake: Lake, bus: Bus) -> None:
    """Raises InvalidRequest if a topic of the bus is not the one that the lake has."""
    topics = {info.name: info for info in bus.topics()}
    table = lake.table("bronze").open()
    known = positions(table, topics)
    for topic, position in known.items():
        if position > topics[topic].next_offset:
            raise InvalidRequest(
                f"The lake {lake.folder} has {topic!r} up to offset {position}, and the bus ends at "
                f"{topics[topic].next_offset}: {ADVICE}."
            )
    there = [topic for topic, position in known.items() if position > topics[topic].first_offset]
    for topic in there[:TOPICS_LOOKED_AT]:
        ours, theirs = _in_lake(table, topic, known[topic] - 1), _on_bus(bus, topic, known[topic] - 1)
        if ours is not None and ours != theirs:
            raise InvalidRequest(
                f"The message at offset {known[topic] - 1} of {topic!r} in the lake {lake.folder} is not the one on "
                f"the bus: {ADVICE}."
            )


def _in_lake(table: DeltaTable, topic: str, offset: int) -> tuple[Any, ...] | None:
    wanted = (ds.field("topic") == topic) & (ds.field("offset") == offset)
    rows = table.to_pyarrow_table(columns=["publisher", "value"], filters=wanted).to_pylist()
    return (rows[0]["publisher"], rows[0]["value"]) if rows else None


def _on_bus(bus: Bus, topic: str, offset: int) -> tuple[Any, ...] | None:
    for batch in bus.read(topic, offset, offset + 1):
        return batch.columns.publisher, batch.values[0]
    return None
