"""Was every subscription given every message that it covers, once and in order?

Deliveries are compared with what was published by sums of blocks, as `blocks` explains; single rows are looked at in
blocks whose sums differ, and in those that a subscription covers only in part. A message that is given out again
because its subscriber had crashed, or did not ack it, carries a higher attempt: it is counted as *repeated*, which
is no fault. One that was given out twice without that, and without having come back in between, is *doubled*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pyspark.sql import Column, DataFrame, Row, SparkSession

from tidings.client.record import record_files
from tidings.errors import InvalidRequest
from tidings.spark.audit import blocks, records
from tidings.spark.audit.blocks import BLOCK, BLOCK_OFFSETS, FINGERPRINT
from tidings.spark.audit.coverage import Covered, coverage, spans
from tidings.spark.audit.frames import Messages, Ranges
from tidings.spark.audit.order import check_order
from tidings.spark.audit.report import FAULTS_MAX, Fault, Subject, Tally

KINDS = ("lost", "doubled", "unknown", "changed", "repeated", "unsure")
Blocks = set[tuple[int, int]]
"""Blocks of subscriptions, by their numbers."""


def audit_deliveries(
    spark: SparkSession,
    published: Messages,
    folders: Sequence[Path],
    topics: Sequence[str] = (),
    complete: bool = False,
    start: int | None = None,
    lags: Mapping[tuple[str, str], int] | None = None,
) -> list[Subject]:
    """A subject for each subscription. `lags` says how much of a (group, topic) is not acked yet."""
    files = record_files(folders)
    if not files:
        raise InvalidRequest(f"There are no delivery records in {', '.join(map(str, folders))}: name the right folder.")
    subscriptions = coverage(records.about(spark, files), topics)
    held = published.ranges()
    for each in subscriptions:
        each.clip(held.get(each.topic, (0, 0)), complete, start)
    tallies = {each.number: Tally() for each in subscriptions}
    _compare(spark, published, files, subscriptions, held, tallies)
    unordered = [each for each in subscriptions if not each.in_order]
    if unordered:
        check_order(spark, files, unordered, tallies)
    return [_subject(each, tallies[each.number], held, lags or {}) for each in subscriptions]


def _subject(each: Covered, tally: Tally, held: Ranges, lags: Mapping[tuple[str, str], int]) -> Subject:
    waiting = max(0, held.get(each.topic, (0, 0))[1] - each.end)
    lag = lags.get((each.name[0], each.topic), 0) if each.name[1] else 0
    if lag:
        # Of what a group has not acked, some may not have been given to anybody: that is not lost.
        waiting += tally.excuse("lost", max(0, lag - waiting))
        tally.note(f"{lag:,} messages are not acked yet: audit again when they are.")
    if each.unended:
        tally.note(f"{each.unended} of {each.sessions} sessions did not end in good order.")
    return tally.subject(each.shown, each.topic, checked=each.end - each.start, waiting=waiting)


def _compare(
    spark: SparkSession,
    published: Messages,
    files: Sequence[Path],
    subscriptions: Sequence[Covered],
    held: Ranges,
    tallies: Mapping[int, Tally],
) -> None:
    names = {each.name: each.number for each in subscriptions}
    timed = "published_at" in published.columns
    delivered = _delivered(spark, files, names, ("subject", "offset", "weight", "published_us"), timed)
    wanted_sums = blocks.sums(_published(published, spans(subscriptions), timed), "topic")
    found_sums = blocks.sums(delivered, "subject", "weight")
    bad: Blocks = set()
    for each in subscriptions:
        bad |= _differing(each, wanted_sums, found_sums, held.get(each.topic, (0, 0)))
    if bad:
        columns = ("subject", "session", "offset", "attempt", "weight", "published_us")
        rows = _chosen(_delivered(spark, files, names, columns, timed), bad)
        _count_rows(spark, published, rows, subscriptions, bad, held, timed, tallies)


def _differing(each: Covered, published: blocks.Sums, delivered: blocks.Sums, held: tuple[int, int]) -> Blocks:
    """The blocks of a subscription that have to be looked into."""
    covered = range(each.start // BLOCK_OFFSETS, -(-each.end // BLOCK_OFFSETS)) if each.end > each.start else range(0)
    whole = range(-(-each.start // BLOCK_OFFSETS), each.end // BLOCK_OFFSETS)
    found = {
        (each.number, block)
        for block in covered
        if block not in whole or published.get((each.topic, block)) != delivered.get((each.number, block))
    }
    oldest = held[0] // BLOCK_OFFSETS
    return found | {key for key in delivered if key[0] == each.number and key[1] not in covered and key[1] >= oldest}


def _published(published: Messages, ranges: Ranges, timed: bool) -> DataFrame:
    from pyspark.sql import functions as f

    frame = published.frame(("topic", "offset", "published_at") if timed else ("topic", "offset"), ranges)
    micros = f.unix_micros("published_at") if timed else f.lit(0)
    return frame.select("topic", "offset", blocks.block_of_offset(), f.xxhash64("offset", micros).alias(FINGERPRINT))


def _delivered(
    spark: SparkSession, files: Sequence[Path], names: Mapping[records.Name, int], columns: Sequence[str], timed: bool
) -> DataFrame:
    from pyspark.sql import functions as f

    frame = records.rows(spark, files, names, columns)
    micros = f.col("published_us") if timed else f.lit(0)
    return frame.select("*", blocks.block_of_offset(), f.xxhash64("offset", micros).alias(FINGERPRINT))


def _chosen(frame: DataFrame, chosen: Blocks) -> DataFrame:
    from pyspark.sql import functions as f

    table = frame.sparkSession.createDataFrame(sorted(chosen), f"subject long, {BLOCK} long")
    return frame.join(f.broadcast(table), ["subject", BLOCK])


def _count_rows(
    spark: SparkSession,
    published: Messages,
    rows: DataFrame,
    subscriptions: Sequence[Covered],
    bad: Blocks,
    held: Ranges,
    timed: bool,
    tallies: Mapping[int, Tally],
) -> None:
    """Counts the deliveries of each message in the chosen blocks, and says what is wrong with them."""
    from pyspark.sql import functions as f

    by_number = {each.number: each for each in subscriptions}
    table = spark.createDataFrame(
        [
            (each.topic, number, block, each.start, each.end, *held.get(each.topic, (0, 0)))
            for number, block in sorted(bad)
            for each in [by_number[number]]
        ],
        f"topic string, subject long, {BLOCK} long, start long, stop long, first long, next long",
    )
    narrowed = {
        topic: (max(start, held[topic][0]), min(end, held[topic][1]))
        for topic, (start, end) in blocks.spans((by_number[number].topic, block) for number, block in bad).items()
        if topic in held
    }
    journal = _published(published, narrowed, timed).join(f.broadcast(table), ["topic", BLOCK])
    was = journal.select("subject", "offset", f.col(FINGERPRINT).alias("was"))
    ends = table.select("subject", "start", "stop", "first", "next").distinct()
    joined = was.join(_each_message(rows), ["subject", "offset"], "full_outer").join(f.broadcast(ends), "subject")
    outcome = _judged(joined, _uncertain(by_number[number] for number in {number for number, _ in bad}))
    wrong = outcome.where(" + ".join(KINDS) + " > 0").cache()
    try:
        for row in wrong.groupBy("subject").agg(*(f.sum(kind).alias(kind) for kind in KINDS)).collect():
            tally = tallies[row.subject]
            for kind in KINDS:
                tally.add(kind, row[kind])
        for row in blocks.firsts(wrong.where("lost + doubled + unknown + changed > 0"), "subject", FAULTS_MAX):
            tallies[row.subject].name([_fault(row, by_number[row.subject].topic)])
    finally:
        wrong.unpersist()


def _each_message(rows: DataFrame) -> DataFrame:
    """How often each message was handed out, less how often it came back, and as what."""
    from pyspark.sql import functions as f

    handed = f.col("weight") > 0
    first, later = handed & (f.col("attempt") <= 1), handed & (f.col("attempt") > 1)
    by_session = rows.groupBy("subject", BLOCK, "offset", "session").agg(
        f.count_if(first).alias("firsts"),
        f.count_if(handed).alias("handed"),
        f.count_if(~handed).alias("back"),
        f.count_distinct(f.when(later, f.col("attempt"))).alias("attempts"),
        f.min(f.when(handed, f.col(FINGERPRINT))).alias("least"),
        f.max(f.when(handed, f.col(FINGERPRINT))).alias("most"),
    )
    net = f.col("handed") - f.col("back")
    started = f.when(f.col("firsts") > 0, 1).otherwise(0)
    # Twice in one session at one attempt, or for the first time in more than one session.
    again = f.sum(f.greatest(net - started - f.col("attempts"), f.lit(0)))
    restarted = f.greatest(f.sum(f.when(net > 0, started).otherwise(0)) - 1, f.lit(0))
    return by_session.groupBy("subject", "offset").agg(
        f.sum(net).alias("net"),
        (again + restarted).alias("doubled"),
        f.min("least").alias("least"),
        f.max("most").alias("most"),
    )


def _judged(joined: DataFrame, uncertain: Column) -> DataFrame:
    """What is wrong with each message, by the kinds of faults."""
    from pyspark.sql import functions as f

    was, offset, count = f.col("was"), f.col("offset"), f.coalesce("net", f.lit(0))
    missing = was.isNotNull() & (count <= 0) & (offset >= f.col("start")) & (offset < f.col("stop"))
    double = f.coalesce("doubled", f.lit(0))
    return joined.select(
        "subject",
        "offset",
        count.alias("count"),
        f.when(missing & ~uncertain, 1).otherwise(0).alias("lost"),
        f.when(missing & uncertain, 1).otherwise(0).alias("unsure"),
        f.when(was.isNotNull(), double).otherwise(0).alias("doubled"),
        # What is below the first offset that is still there cannot be compared.
        f.when(was.isNull() & ((offset >= f.col("next")) | (offset < 0)), count).otherwise(0).alias("unknown"),
        f.when((was != f.col("least")) | (was != f.col("most")), 1).otherwise(0).alias("changed"),
        f.when(was.isNotNull(), f.greatest(count - 1 - double, f.lit(0))).otherwise(0).alias("repeated"),
    )


def _uncertain(subscriptions: Iterable[Covered]) -> Column:
    from pyspark.sql import functions as f

    condition = f.lit(False)
    for each in subscriptions:
        for start, end in each.uncertain:
            inside = (f.col("offset") >= start) & (f.col("offset") < end)
            condition |= (f.col("subject") == each.number) & inside
    return condition


def _fault(row: Row, topic: str) -> Fault:
    wrong = [kind for kind in ("lost", "doubled", "unknown", "changed") if row[kind]]
    return Fault(" and ".join(wrong), topic, row.offset, f"handed out {row['count']} times" if row.doubled else "")
