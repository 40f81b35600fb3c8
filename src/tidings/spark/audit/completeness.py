"""Does the lake hold every message of every topic once, as it was published?

What is in the journal is compared row by row, contents and all. What retention has already removed from the journal
can only be compared with itself: each offset once, without a gap, from the lowest that the lake has.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Row, SparkSession

from tidings.spark.audit import blocks
from tidings.spark.audit.blocks import FINGERPRINT
from tidings.spark.audit.frames import PLACE, Bronze, Journal, Ranges
from tidings.spark.audit.report import FAULTS_MAX, Fault, Subject, Tally

NAME = "lake"


def audit_lake(spark: SparkSession, bronze: Bronze, journal: Journal | None, complete: bool) -> list[Subject]:
    """A subject for each topic. `complete` says that the lake should have all there is, so that nothing waits."""
    held = bronze.ranges()
    published: Ranges = {} if journal is None else journal.ranges()
    if journal is None:
        comparable: Ranges = {}
        alone = held
        waiting: dict[str, int] = {}
    else:
        landed = _landed(bronze, published)
        comparable = {
            topic: (first, next_offset if complete else landed.get(topic, first))
            for topic, (first, next_offset) in published.items()
        }
        waiting = {topic: published[topic][1] - end for topic, (_, end) in comparable.items()}
        alone = {
            topic: (low, min(high, published[topic][0]))
            for topic, (low, high) in held.items()
            if topic in published and low < published[topic][0]
        }
    found: dict[str, Tally] = {}
    if journal is not None:
        _compare_contents(bronze, journal, comparable, alone, found)
    if alone or journal is None:
        rows = bronze.frame(PLACE, None if journal is None else alone)
        _compare_places(expected(spark, alone), rows, found)
    return [
        found.get(topic, Tally()).subject(
            NAME, topic, checked=_count(comparable, topic) + _count(alone, topic), waiting=waiting.get(topic, 0)
        )
        for topic in sorted({*held, *published, *found})
    ]


def _landed(bronze: Bronze, published: Ranges) -> dict[str, int]:
    """Up to which offset each topic has come into the lake; offsets that the journal does not have do not count."""
    from pyspark.sql import functions as f

    ends = bronze.frame(PLACE).sparkSession.createDataFrame(
        [(topic, first, end) for topic, (first, end) in published.items()], "topic string, first long, `end` long"
    )
    rows = bronze.frame(PLACE).join(f.broadcast(ends), "topic").where("offset >= first and offset < `end`")
    return {topic: high + 1 for topic, high in rows.groupBy("topic").agg(f.max("offset")).collect()}


def _compare_contents(
    bronze: Bronze,
    journal: Journal,
    comparable: Ranges,
    alone: Ranges,
    found: dict[str, Tally],
) -> None:
    columns = bronze.columns
    left = _marked(journal.frame(columns, comparable), columns)
    right = _without(_marked(bronze.frame(columns), columns), alone)
    bad = blocks.differing(blocks.sums(left, "topic"), blocks.sums(right, "topic"))
    if not bad:
        return
    spans = blocks.spans(bad)
    narrowed = {
        topic: (max(start, spans[topic][0]), min(end, spans[topic][1]))
        for topic, (start, end) in comparable.items()
        if topic in spans
    }
    left = _marked(journal.frame(columns, narrowed), columns)
    _name_faults(blocks.only(left, bad, "topic"), blocks.only(right, bad, "topic"), found)


def _compare_places(wanted: DataFrame, rows: DataFrame, found: dict[str, Tally]) -> None:
    left, right = _marked(wanted, PLACE), _marked(rows, PLACE)
    bad = blocks.differing(blocks.sums(left, "topic"), blocks.sums(right, "topic"))
    if bad:
        _name_faults(blocks.only(left, bad, "topic"), blocks.only(right, bad, "topic"), found)


def expected(spark: SparkSession, ranges: Ranges) -> DataFrame:
    """A row for each offset of the ranges, without anything being read."""
    from pyspark.sql import functions as f

    frame: DataFrame | None = None
    for topic, (start, end) in ranges.items():
        piece = spark.range(start, end).select(f.lit(topic).alias("topic"), f.col("id").alias("offset"))
        frame = piece if frame is None else frame.union(piece)
    return spark.createDataFrame([], "topic string, offset long") if frame is None else frame


def _marked(frame: DataFrame, columns: tuple[str, ...]) -> DataFrame:
    return frame.select(*PLACE, blocks.block_of_offset(), blocks.fingerprint(columns))


def _without(frame: DataFrame, ranges: Ranges) -> DataFrame:
    from pyspark.sql import functions as f

    for topic, (start, end) in ranges.items():
        frame = frame.where(~((f.col("topic") == topic) & f.col("offset").between(start, end - 1)))
    return frame


def _name_faults(left: DataFrame, right: DataFrame, found: dict[str, Tally]) -> None:
    """Counts what is wrong with each topic, and names the first offending rows."""
    from pyspark.sql import functions as f

    both = left.select(*PLACE, FINGERPRINT, f.lit(1).alias("was"), f.lit(0).alias("is")).union(
        right.select(*PLACE, FINGERPRINT, f.lit(0).alias("was"), f.lit(1).alias("is"))
    )
    rows = (
        both.groupBy(*PLACE)
        .agg(
            f.sum("was").alias("was"),
            f.sum("is").alias("is"),
            (f.min(FINGERPRINT) != f.max(FINGERPRINT)).alias("differ"),
        )
        .select(
            *PLACE,
            f.when((f.col("was") > 0) & (f.col("is") == 0), 1).otherwise(0).alias("lost"),
            (f.greatest(f.col("is") - 1, f.lit(0)) * (f.col("was") > 0).cast("int")).alias("doubled"),
            f.when(f.col("was") == 0, f.col("is")).otherwise(0).alias("unknown"),
            f.when((f.col("was") > 0) & (f.col("is") > 0) & f.col("differ"), 1).otherwise(0).alias("changed"),
        )
        .where("lost + doubled + unknown + changed > 0")
        .cache()
    )
    try:
        kinds = ("lost", "doubled", "unknown", "changed")
        for row in rows.groupBy("topic").agg(*(f.sum(kind).alias(kind) for kind in kinds)).collect():
            tally = found.setdefault(row.topic, Tally())
            for kind in kinds:
                tally.add(kind, row[kind])
        for row in blocks.firsts(rows, "topic", FAULTS_MAX):
            found[row.topic].name([_fault(row, kinds)])
    finally:
        rows.unpersist()


def _fault(row: Row, kinds: tuple[str, ...]) -> Fault:
    wrong = [kind for kind in kinds if row[kind]]
    detail = f"{row.doubled + 1} times" if row.doubled else ""
    return Fault(" and ".join(wrong), row.topic, row.offset, detail)


def _count(ranges: Ranges, topic: str) -> int:
    start, end = ranges.get(topic, (0, 0))
    return max(0, end - start)
