"""Silver: messages as text, each id once, with the order of their publishers checked and their numbers in words.

What is checked, on every message of bronze:

- *text*: the value is UTF-8; otherwise it is rejected as `not UTF-8`.
- *id*: of the messages with one id in a topic the first, by offset, is taken. The others, in this batch or any later
  one, are rejected as `duplicate id`. Messages without an id are never duplicates. (The broker itself refuses ids that
  it remembers, for seven days if it is not told otherwise; this holds for as long as the first one is in silver.)
- *order*: `in_order` is false for a message whose publisher had, at a lower offset of the same topic, already published
  with a later time. Such a message stays in silver: somebody's clock was set back, or two processes use one name.

So every row of bronze is in silver or in rejected, and in one of them only.

A micro-batch makes three commits: rejected, silver, publishers. What rejected and silver depend on is changed by silver
(the ids) and by publishers (the times), and what publishers depends on by itself, so a batch that is repeated finds the
same rows, whichever of the three it had got to.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tidings.pipeline.bronze import IDS
from tidings.pipeline.delta import without_pandas_warning
from tidings.pipeline.lake import Lake
from tidings.pipeline.plan import Plan
from tidings.pipeline.source import FORMAT
from tidings.spark.delta_frames import lake_table, read_parts

NAME = "silver"
NOT_TEXT = "not UTF-8"
DUPLICATE = "duplicate id"


def query(spark: SparkSession, lake: Lake, plan: Plan) -> DataStreamWriter:
    """The query from bronze to silver, rejected and publishers."""
    reader = spark.readStream.format(FORMAT).option("lake", str(lake.folder)).option("table", "bronze")
    rows = reader.option("maxRowsPerTrigger", plan.batch_rows).load()
    return rows.writeStream.foreachBatch(partial(store, lake, plan.language))


def store(lake: Lake, language: str | None, rows: DataFrame, batch: int) -> None:
    """One micro-batch."""
    app = lake.app(NAME)
    silver, rejected, publishers = (lake.table(name) for name in (NAME, "rejected", "publishers"))
    if publishers.has_done(app, batch):
        return
    judged = check_order(lake, find_duplicates(lake, read_text(rows))).persist()
    try:
        if not silver.has_done(app, batch):  # Else these rows would be taken for duplicates of themselves.
            rejected.append(judged.where("reason is not null"), app, batch)
            silver.append(enrich(judged.where("reason is null"), language), app, batch)
        paths = [part["path"] for part in publishers.live()]
        known = read_parts(rows.sparkSession, publishers.open(), publishers.folder, paths)
        counted = publishers.write(count_publishers(known, judged).coalesce(1), batch)
        publishers.commit(counted, app, batch, instead_of=paths)
    finally:
        judged.unpersist()


def read_text(rows: DataFrame) -> DataFrame:
    """The value as `text`, and a `reason` if it is none."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    text = F.col("value").cast("string")
    return rows.withColumn("text", text).withColumn("reason", F.when(~F.is_valid_utf8(text), NOT_TEXT))


def find_duplicates(lake: Lake, rows: DataFrame) -> DataFrame:
    """Gives a reason to every message whose id came before, in these rows or in silver."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    if lake.table("bronze").open().transaction_version(IDS) is None:
        return rows
    seen = lake_table(rows.sparkSession, lake.folder, NAME).where("id is not null")
    seen = seen.select("topic", "id", F.lit(True).alias("seen")).distinct()
    # A message without an id is alone, and so the first of its kind; the offset spreads them evenly.
    alone = F.when(F.col("id").isNull(), F.col("offset"))
    place = F.row_number().over(Window.partitionBy("topic", "id", alone, "reason").orderBy("offset"))
    judged = rows.withColumn("place", place).join(seen, ["topic", "id"], "left")
    again = F.col("reason").isNull() & ((F.col("place") > 1) | F.col("seen").isNotNull())
    return judged.withColumn("reason", F.when(again, DUPLICATE).otherwise(F.col("reason")))


def check_order(lake: Lake, rows: DataFrame) -> DataFrame:
    """Adds `in_order`: whether the publisher's clock had not been later at a lower offset of the topic."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    known = lake_table(rows.sparkSession, lake.folder, "publishers")
    known = known.select("topic", "publisher", F.col("latest_published_at").alias("known_at"))
    earlier = Window.partitionBy("topic", "publisher").orderBy("offset")
    earlier = earlier.rowsBetween(Window.unboundedPreceding, -1)
    latest = F.greatest(F.max("published_at").over(earlier), F.col("known_at"))
    in_order = F.coalesce(F.col("published_at") >= latest, F.lit(True))
    return rows.join(known, ["topic", "publisher"], "left").withColumn("in_order", in_order)


def enrich(rows: DataFrame, language: str | None) -> DataFrame:
    """The columns of silver that bronze does not have."""
    from pyspark.sql import functions as F  # noqa: N812

    published, stored = F.unix_micros("published_at"), F.unix_micros("stored_at")
    return rows.withColumns(
        {
            "words": F.col("text") if language is None else in_words(F.col("text"), language),
            # A clock that is ahead must not make everybody else late: an event is not after it was stored.
            "event_at": F.least("published_at", "stored_at"),
            "latency_ms": F.when(stored.isNotNull(), F.greatest(stored - published, F.lit(0)) / 1000),
            "size_bytes": F.octet_length("value").cast("long"),
        }
    )


def in_words(text: Column, language: str) -> Column:
    """The text with its numbers in words, by an Arrow UDF; texts without a digit are left to Arrow."""
    from pyspark.sql.pandas.functions import arrow_udf

    def spelled(texts: pa.Array) -> pa.Array:
        from tidings.spelling import spell

        digits = pc.match_substring_regex(texts, "[0-9]")
        if not pc.any(digits).as_py():
            return texts
        words = pa.array([spell(each, language) for each in texts.filter(digits).to_pylist()], texts.type)
        return pc.replace_with_mask(texts, digits, words)

    with without_pandas_warning():
        column: Column = arrow_udf(spelled, "string")(text)  # type: ignore[call-overload]
    return column


def count_publishers(known: DataFrame, judged: DataFrame) -> DataFrame:
    """What is known of each publisher, with what this batch says."""
    from pyspark.sql import functions as F  # noqa: N812

    news = judged.selectExpr(
        *("topic", "publisher", "1L as messages", "if(in_order, 0L, 1L) as backwards"),
        *("offset as last_offset", "published_at as latest_published_at"),
    )
    return (
        known.unionByName(news)
        .groupBy("topic", "publisher")
        .agg(
            F.sum("messages").alias("messages"),
            F.sum("backwards").alias("backwards"),
            F.max("last_offset").alias("last_offset"),
            F.max("latest_published_at").alias("latest_published_at"),
        )
    )
