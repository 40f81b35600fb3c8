"""Where an audit finds messages: the topics of a broker, or the bronze table of a lake. Both have the same columns.

The order in which things are looked at matters while others go on writing: first the lake (a version of its table,
which stays as it is), then how far the topics go. So the journal has everything that the lake can have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from tidings.errors import InvalidRequest, NoSuchTopic
from tidings.spark.door import bus_of
from tidings.spark.options import Door

BRONZE = "bronze"
PLACE = ("topic", "offset")
CONTENTS = ("key", "value", "headers", "id", "publisher", "published_at", "stored_at")
"""What a message is, beside its place."""

Ranges = Mapping[str, tuple[int, int]]
"""The first offset of each topic, and the one after its last."""


class Messages(Protocol):
    """A place that holds messages."""

    @property
    def name(self) -> str:
        """What to call it in a sentence."""

    @property
    def columns(self) -> Sequence[str]:
        """Those of the data source's columns that it has."""

    def ranges(self) -> Ranges:
        """From where to where its topics go."""

    def frame(self, columns: Sequence[str], ranges: Ranges | None = None) -> DataFrame:
        """These columns of its rows: of all, or of certain offsets of certain topics."""


class Journal:
    """The topics of a broker, each as far as it went when the audit began."""

    name = "the journal"
    columns = (*PLACE, *CONTENTS)

    def __init__(self, spark: SparkSession, door: Door, topics: Sequence[str] = ()) -> None:
        self._spark = spark
        self._door = door
        with bus_of(door, begins=True) as bus:
            held = {info.name: (info.first_offset, info.next_offset) for info in bus.topics()}
        missing = [each for each in topics if "*" not in each and each not in held]
        if missing:
            raise NoSuchTopic(f"There is no topic {missing[0]!r} on the bus: `tidings topics` lists them.")
        self._ranges = {topic: ends for topic, ends in sorted(held.items()) if wanted(topic, topics)}

    def ranges(self) -> Ranges:
        return self._ranges

    def frame(self, columns: Sequence[str], ranges: Ranges | None = None) -> DataFrame:
        from tidings.spark.schema import COLUMNS

        schema = ", ".join(f"`{each}` {COLUMNS[each].dataType.simpleString()}" for each in columns)
        chosen = self._ranges if ranges is None else ranges
        chosen = {topic: ends for topic, ends in chosen.items() if ends[0] < ends[1]}
        if not chosen:
            return self._spark.createDataFrame([], schema)
        door = self._door
        options = {
            "bus": door.bus,
            "user": door.user,
            "keys": door.keys,
            "serverKey": door.server_key,
            "timeout": str(door.timeout_s),
            "topic": ",".join(chosen),
            "startingOffsets": json.dumps({topic: start for topic, (start, _) in chosen.items()}),
            "endingOffsets": json.dumps({topic: end for topic, (_, end) in chosen.items()}),
        }
        given = {name: value for name, value in options.items() if value is not None}
        return self._spark.read.format("tidings").options(**given).schema(schema).load()


class Bronze:
    """One version of a lake's bronze table: its live files, read by Spark as they are."""

    name = "the lake"

    def __init__(self, spark: SparkSession, lake: Path, topics: Sequence[str] = ()) -> None:
        self._spark = spark
        self._topics = tuple(topics)
        self._found: Ranges | None = None
        table = lake / BRONZE
        self._all = _open(spark, table)
        missing = [each for each in (*PLACE, "value") if each not in self._all.columns]
        if missing:
            raise InvalidRequest(
                f"{table} has no column {missing[0]!r} (it has {', '.join(self._all.columns)}): "
                "is that the bronze table of a tidings lake?"
            )
        self.columns = tuple(each for each in (*PLACE, *CONTENTS) if each in self._all.columns)

    def ranges(self) -> Ranges:
        """From the lowest offset of each topic to its highest, found once."""
        if self._found is None:
            from pyspark.sql import functions as f

            rows = self.frame(PLACE).where("offset >= 0")
            ends = rows.groupBy("topic").agg(f.min("offset"), f.max("offset")).collect()
            self._found = {topic: (low, high + 1) for topic, low, high in sorted(map(tuple, ends))}
        return self._found

    def frame(self, columns: Sequence[str], ranges: Ranges | None = None) -> DataFrame:
        """A row without a topic or an offset is one of the topic '' or of the offset -1, so that it is counted too."""
        from pyspark.sql import functions as f

        placed = {
            "topic": f.coalesce(f.col("topic").cast("string"), f.lit("")),
            "offset": f.coalesce(f.col("offset").cast("long"), f.lit(-1)),
        }
        frame = self._all.select(*(placed[each].alias(each) if each in placed else f.col(each) for each in columns))
        if self._topics:
            patterns = [f.col("topic").rlike(_regular(each)) for each in self._topics]
            condition = patterns[0]
            for each in patterns[1:]:
                condition |= each
            frame = frame.where(condition)
        if ranges is None:
            return frame
        condition = f.lit(False)
        for topic, (start, end) in ranges.items():
            condition |= (f.col("topic") == topic) & (f.col("offset") >= start) & (f.col("offset") < end)
        return frame.where(condition)


def wanted(topic: str, topics: Sequence[str]) -> bool:
    """Whether a topic is one of these names or patterns; without any, all are.

    >>> wanted("news", ()), wanted("news", ["n*"]), wanted("news", ["new"])
    (True, True, False)
    """
    return not topics or any(topic == each or ("*" in each and fnmatchcase(topic, _glob(each))) for each in topics)


def _glob(pattern: str) -> str:
    return re.sub(r"[\[?]", lambda found: f"[{found.group()}]", pattern)


def _regular(pattern: str) -> str:
    return "^" + ".*".join(re.escape(part) for part in pattern.split("*")) + "$"


def _plain(path: Path) -> str:
    """A path in which Spark sees no pattern."""
    return re.sub(r"([\[\]{}*?\\,])", r"\\\1", str(path))


def _open(spark: SparkSession, table: Path) -> DataFrame:
    """The rows of a table's live files. What else lies in its folder was left behind by writers that crashed.

    Columns by which the table is partitioned are not in its files: their values come from its log.
    """
    from pyspark.sql import functions as f

    from tidings.spark.schema import COLUMNS

    frame: DataFrame | None = None
    for partition, files in live_files(table).items():
        piece = spark.read.parquet(*map(_plain, files))
        for column, value in partition:
            piece = piece.withColumn(column, f.lit(value))
        frame = piece if frame is None else frame.unionByName(piece, allowMissingColumns=True)
    return spark.createDataFrame([], COLUMNS) if frame is None else frame


def live_files(table: Path) -> dict[tuple[tuple[str, str | None], ...], list[Path]]:
    """The files of a Delta table's present version, by the values of the columns that it is partitioned by."""
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError
    except ModuleNotFoundError as error:
        raise InvalidRequest("A lake needs deltalake: pip install '.[spark]' in a checkout.") from error
    import pyarrow as pa

    try:
        delta = DeltaTable(table)
    except TableNotFoundError as error:
        raise InvalidRequest(f"There is no table {table}: name the folder that has {BRONZE}/ in it.") from error
    columns = delta.metadata().partition_columns
    found: dict[tuple[tuple[str, str | None], ...], list[Path]] = {}
    for action in pa.table(delta.get_add_actions(flatten=True)).to_pylist():
        partition = tuple((column, action[f"partition.{column}"]) for column in columns)
        found.setdefault(partition, []).append(table / unquote(action["path"]))
    return found
