"""Comparing two large sets of rows without sorting either: sums of blocks first, single rows only where sums differ.

Each row has a fingerprint, a 64-bit hash of everything that is compared. The rows are cut into blocks, and each side
sums up its blocks: how many rows, and the sums of both halves of their fingerprints. Equal sums mean equal rows, but
for a chance of about one in 2^64 a block: a row that is missing and another that is doubled keep the count, and could
keep a sum of offsets, but not a sum of hashes. Where the sums of a block differ, its rows are compared one by one,
which is exact, names the offending ones, and costs as much as the blocks that are wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Row

FINGERPRINT = "fingerprint"
BLOCK = "block"
BLOCK_OFFSETS = 1 << 18
"""How many offsets a block spans. Small enough to look into quickly, large enough that the sums are few."""

Key = tuple[Any, int]
"""A block: its topic (or whatever else is compared), and its number."""
Sums = Mapping[Key, tuple[int, int, int]]


def fingerprint(columns: Sequence[str]) -> Column:
    """A hash of these columns. Spark's hash passes over nulls, so it is told where they are."""
    from pyspark.sql import functions as f

    parts: list[Column] = []
    for name in columns:
        # The entries of a map have no order, and Spark does not hash maps.
        value = f.array_sort(f.map_entries(f.col(name))) if name == "headers" else f.col(name)
        parts += [f.isnull(f.col(name)), value]
    return f.xxhash64(*parts).alias(FINGERPRINT)


def block_of_offset() -> Column:
    """The block that an offset lies in."""
    from pyspark.sql import functions as f

    return f.floor(f.col("offset") / BLOCK_OFFSETS).cast("long").alias(BLOCK)


def sums(frame: DataFrame, subject: str, weight: str | None = None) -> Sums:
    """The sums of each block of a frame that has the columns `subject`, block and fingerprint.

    A row counts once, or as often as its weight says: one that was taken back counts against the one before.
    """
    from pyspark.sql import functions as f

    times = f.lit(1) if weight is None else f.col(weight)
    summed = frame.groupBy(subject, BLOCK).agg(
        f.sum(times),
        f.sum(times * f.col(FINGERPRINT).bitwiseAND(f.lit(0xFFFF_FFFF))),
        f.sum(times * f.shiftrightunsigned(FINGERPRINT, 32)),
    )
    return {(row[0], row[1]): (row[2], row[3], row[4]) for row in summed.collect()}


def differing(left: Sums, right: Sums) -> list[Key]:
    """The blocks that are not the same on both sides, in order.

    >>> differing({("a", 0): (2, 7, 7), ("a", 1): (1, 5, 5)}, {("a", 0): (2, 7, 7), ("b", 0): (1, 5, 5)})
    [('a', 1), ('b', 0)]
    """
    return sorted(key for key in {**left, **right} if left.get(key) != right.get(key))


def only(frame: DataFrame, blocks: Iterable[Key], subject: str) -> DataFrame:
    """The rows of a frame that lie in these blocks."""
    from pyspark.sql import functions as f

    chosen = frame.sparkSession.createDataFrame(list(blocks), f"`{subject}` string, {BLOCK} long")
    return frame.join(f.broadcast(chosen), [subject, BLOCK])


def firsts(frame: DataFrame, subject: str, count: int) -> list[Row]:
    """The first rows of each subject, by their offsets: one job, however many subjects there are."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    place = f.row_number().over(Window.partitionBy(subject).orderBy("offset"))
    return frame.withColumn("place", place).where(f.col("place") <= count).orderBy(subject, "place").collect()


def spans(blocks: Iterable[Key]) -> dict[str, tuple[int, int]]:
    """From where to where the blocks of each topic go, as offsets.

    >>> spans([("a", 2), ("a", 0)]) == {"a": (0, 3 * BLOCK_OFFSETS)}
    True
    """
    found: dict[str, tuple[int, int]] = {}
    for topic, block in blocks:
        start, end = block * BLOCK_OFFSETS, (block + 1) * BLOCK_OFFSETS
        low, high = found.get(topic, (start, end))
        found[topic] = (min(low, start), max(high, end))
    return found
