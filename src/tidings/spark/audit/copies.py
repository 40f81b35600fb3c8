"""Is every message of one topic once in another, and nothing else?

A copy has offsets of its own, so messages are known by what they are: by key and value, by headers too, or by the
caller's id. A message that was published several times has to be there as many times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pyspark.sql import DataFrame, Row

from tidings.spark.audit import blocks
from tidings.spark.audit.blocks import BLOCK, FINGERPRINT
from tidings.spark.audit.frames import Messages, Ranges
from tidings.spark.audit.report import FAULTS_MAX, Fault, Subject, Tally

By = Literal["value", "all", "id"]
COLUMNS: dict[By, tuple[str, ...]] = {
    "value": ("key", "value"),
    "all": ("key", "value", "headers", "id"),
    "id": ("id",),
}
BUCKETS = 1024
"""Rows of one identity fall into one bucket, whose number takes the place of a block."""
KINDS = ("lost", "doubled", "unknown")


def audit_copy(messages: Messages, source: str, target: str, by: By = "value", held: Ranges | None = None) -> Subject:
    """What became of the source's messages in the target. `held` limits either topic to a range of offsets."""
    ranges = {**messages.ranges(), **(held or {})}
    columns = COLUMNS[by]
    left = _identified(messages, source, ranges, columns)
    right = _identified(messages, target, ranges, columns)
    tally = Tally()
    left_sums, right_sums = blocks.sums(left, "topic"), blocks.sums(right, "topic")
    bad = blocks.differing(
        {("", bucket): sums for (_, bucket), sums in left_sums.items()},
        {("", bucket): sums for (_, bucket), sums in right_sums.items()},
    )
    if bad:
        _name_faults(left, right, columns, [bucket for _, bucket in bad], source, target, tally)
    checked = sum(count for count, _, _ in left_sums.values())
    return tally.subject(f"copy in {target}", source, checked=checked)


def _identified(messages: Messages, topic: str, ranges: Ranges, columns: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as f

    frame = messages.frame(("topic", "offset", *columns), {topic: ranges.get(topic, (0, 0))})
    marked = frame.select("topic", "offset", *columns, blocks.fingerprint(columns))
    return marked.withColumn(BLOCK, f.pmod(f.col(FINGERPRINT), f.lit(BUCKETS)))


def _name_faults(
    left: DataFrame,
    right: DataFrame,
    columns: Sequence[str],
    buckets: Sequence[int],
    source: str,
    target: str,
    tally: Tally,
) -> None:
    """Counts each message on both sides, by its columns as they are, in the buckets that are not the same."""
    from pyspark.sql import functions as f

    chosen = f.col(BLOCK).isin(list(buckets))
    sides = [
        frame.where(chosen).select(
            *columns,
            f.col("offset"),
            f.lit(int(frame is left)).alias("was"),
            f.lit(int(frame is right)).alias("is"),
        )
        for frame in (left, right)
    ]
    # Maps cannot be grouped by; their entries in order can.
    keys = [f.array_sort(f.map_entries(each)).alias(each) if each == "headers" else f.col(each) for each in columns]
    was, is_ = f.col("was"), f.col("is")
    rows = (
        sides[0]
        .union(sides[1])
        .groupBy(*keys)
        .agg(
            f.sum("was").alias("was"),
            f.sum("is").alias("is"),
            f.min(f.when(was == 1, f.col("offset"))).alias("source_offset"),
            f.max(f.when(is_ == 1, f.col("offset"))).alias("target_offset"),
        )
        .select(
            "was",
            "is",
            "source_offset",
            "target_offset",
            f.greatest(was - is_, f.lit(0)).alias("lost"),
            f.when(was > 0, f.greatest(is_ - was, f.lit(0))).otherwise(0).alias("doubled"),
            f.when(was == 0, is_).otherwise(0).alias("unknown"),
        )
        .where("lost + doubled + unknown > 0")
        .cache()
    )
    try:
        total = rows.agg(*(f.coalesce(f.sum(kind), f.lit(0)).alias(kind) for kind in KINDS)).collect()[0]
        for kind in KINDS:
            tally.add(kind, total[kind])
        first = rows.orderBy(f.coalesce("source_offset", "target_offset")).limit(FAULTS_MAX).collect()
        tally.name([_fault(row, source, target) for row in first])
    finally:
        rows.unpersist()


def _fault(row: Row, source: str, target: str) -> Fault:
    if row.unknown:
        return Fault("unknown", target, row.target_offset, f"not in {source!r}")
    if row.lost:
        few = "not" if row["is"] == 0 else f"{row['is']} times instead of {row.was}"
        return Fault("lost", source, row.source_offset, f"{few} in {target!r}")
    return Fault("doubled", source, row.source_offset, f"{row['is']} times instead of {row.was} in {target!r}")
