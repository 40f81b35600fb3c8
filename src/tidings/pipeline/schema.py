"""The columns of the tables of a lake."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tidings.spark.arrow import COLUMNS, HEADERS, TIMESTAMP

BRONZE = COLUMNS
"""What the data source gives, column by column."""

SILVER = pa.schema(
    [
        ("topic", pa.string()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("text", pa.string()),
        ("words", pa.string()),
        ("headers", HEADERS),
        ("id", pa.string()),
        ("publisher", pa.string()),
        ("published_at", TIMESTAMP),
        ("stored_at", TIMESTAMP),
        ("event_at", TIMESTAMP),
        ("latency_ms", pa.float64()),
        ("size_bytes", pa.int64()),
        ("in_order", pa.bool_()),
    ]
)

REJECTED = BRONZE.append(pa.field("reason", pa.string()))

PUBLISHERS = pa.schema(
    [
        ("topic", pa.string()),
        ("publisher", pa.string()),
        ("messages", pa.int64()),
        ("backwards", pa.int64()),
        ("last_offset", pa.int64()),
        ("latest_published_at", TIMESTAMP),
    ]
)

GOLD = pa.schema(
    [
        ("topic", pa.string()),
        ("window_start", TIMESTAMP),
        ("window_end", TIMESTAMP),
        ("messages", pa.int64()),
        ("rate", pa.float64()),
        ("size_bytes", pa.int64()),
        ("size_mean", pa.float64()),
        ("size_max", pa.int64()),
        ("latency_p50_ms", pa.float64()),
        ("latency_p95_ms", pa.float64()),
        ("latency_p99_ms", pa.float64()),
        ("publishers", pa.int64()),
        ("backwards", pa.int64()),
        ("top_words", pa.list_(pa.field("element", pa.struct([("word", pa.string()), ("count", pa.int64())])))),
    ]
)


def measured(schema: pa.Schema) -> list[str]:
    """The columns whose extremes are noted for each file: numbers and times.

    Texts are left out on purpose. Their extremes would be as long as they are, and what deltalake makes of them
    misleads PyArrow and anyone who reads through it: a filter on such a column fails, or finds nothing.
    """
    return [field.name for field in schema if pa.types.is_int64(field.type) or pa.types.is_timestamp(field.type)]


@dataclass(frozen=True)
class Kind:
    """A table of every lake: its columns, what it is, and which time of a row retention goes by."""

    schema: pa.Schema
    about: str
    age_column: str


TABLES = {
    "bronze": Kind(BRONZE, "every message as it was published", "stored_at"),
    "silver": Kind(SILVER, "messages as text, without duplicates, with their order checked", "stored_at"),
    "rejected": Kind(REJECTED, "what is not in silver, and why", "stored_at"),
    "publishers": Kind(
        PUBLISHERS, "who published to which topic, how much, and in order or not", "latest_published_at"
    ),
    "gold": Kind(GOLD, "figures for each topic and window of time", "window_end"),
}
