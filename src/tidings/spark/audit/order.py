"""Were first deliveries made in order?

Along the offsets of an exclusive subscription, or of each lane of a group, every message has to have been handed out
after the one before it. An exclusive subscription's moments are the epoch of its session and the place in its record:
no clock. Members of a group have only their clocks in common.

Neighbours are compared in pieces that Spark can share out: a lane of a group, a block of an exclusive subscription.
What meets where two blocks do is compared at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession

from tidings.spark.audit import blocks, records
from tidings.spark.audit.coverage import Covered
from tidings.spark.audit.report import FAULTS_MAX, Fault, Tally

Pairs = dict[int, list[tuple[int, int]]]
"""For each subscription: an offset, and the one before it that was handed out later."""


def check_order(
    spark: SparkSession, files: Sequence[Path], subscriptions: Sequence[Covered], tallies: Mapping[int, Tally]
) -> None:
    """Looks at every first delivery of these subscriptions."""
    moments = _moments(spark, files, subscriptions)
    if not all(each.plain and not tallies[each.number].count("doubled") for each in subscriptions):
        from pyspark.sql import functions as f

        moments = moments.groupBy("subject", "group", "piece", "offset").agg(f.min("moment").alias("moment"))
    counts, found = _inside_pieces(moments)
    for number, pairs in _between_blocks(moments).items():
        counts[number] = counts.get(number, 0) + len(pairs)
        found.setdefault(number, []).extend(pairs)
    topics = {each.number: each.topic for each in subscriptions}
    for number, count in counts.items():
        tallies[number].add("reordered", count)
        tallies[number].name(
            Fault("reordered", topics[number], offset, f"handed out before {before}")
            for offset, before in sorted(found[number])[:FAULTS_MAX]
        )


def _moments(spark: SparkSession, files: Sequence[Path], subscriptions: Sequence[Covered]) -> DataFrame:
    """When each message was handed out, with the piece in which it is compared; what has no lane has no order."""
    from pyspark.sql import functions as f

    names = {each.name: each.number for each in subscriptions}
    group = f.col("subject").isin([each.number for each in subscriptions if each.name[1]])
    columns = ("subject", "epoch", "offset", "lane", "weight", "handed_us", "sequence")
    handed = records.rows(spark, files, names, columns).where(
        (f.col("weight") > 0) & (~group | (f.col("lane") != 0)) & (f.col("offset") >= 0)
    )
    when = f.when(group, f.col("handed_us")).otherwise(f.col("epoch"))
    return handed.select(
        "subject",
        group.alias("group"),
        f.when(group, f.col("lane")).otherwise(blocks.block_of_offset()).alias("piece"),
        "offset",
        f.struct(when.alias("when"), "sequence").alias("moment"),
    )


def _inside_pieces(moments: DataFrame) -> tuple[dict[int, int], Pairs]:
    """How many messages were handed out before the one before them, and the first of these."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    window = Window.partitionBy("subject", "piece").orderBy("offset")
    beside = moments.select(
        "subject",
        "offset",
        f.lag("offset").over(window).alias("before"),
        (f.col("moment") < f.lag("moment").over(window)).alias("early"),
    )
    early = beside.where("early").cache()
    found: Pairs = {}
    try:
        counts = {row[0]: row[1] for row in early.groupBy("subject").count().collect()}
        for row in blocks.firsts(early, "subject", FAULTS_MAX) if counts else ():
            found.setdefault(row.subject, []).append((row.offset, row.before))
    finally:
        early.unpersist()
    return counts, found


def _between_blocks(moments: DataFrame) -> Pairs:
    """The same for the first message of each block and the last one of the block before."""
    from pyspark.sql import functions as f

    place = f.struct("offset", "moment")
    ends = (
        moments.where(~f.col("group"))
        .groupBy("subject", "piece")
        .agg(f.min_by(place, "offset").alias("low"), f.max_by(place, "offset").alias("high"))
        .orderBy("subject", "piece")
        .collect()
    )
    found: Pairs = {}
    previous: Row | None = None
    for row in ends:
        if previous is not None and previous.subject == row.subject:
            before, after = previous.high, row.low
            if tuple(after.moment) < tuple(before.moment):
                found.setdefault(row.subject, []).append((after.offset, before.offset))
        previous = row
    return found
