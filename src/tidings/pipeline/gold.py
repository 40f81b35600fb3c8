"""Gold: for each topic and window of time how many messages, how large, how late, by whom, and which words.

Spark keeps the windows as state and forgets one when the watermark has passed it: `watermark` behind the latest event
that it has seen. A message that comes later than that is in silver and no longer in gold. A window that has changed is
written again, so the row of a window counts all that came in time.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tidings.pipeline.delta import Table
from tidings.pipeline.lake import Lake
from tidings.pipeline.plan import Plan
from tidings.pipeline.schema import GOLD
from tidings.pipeline.source import FORMAT
from tidings.spark.delta_frames import read_parts

NAME = "gold"
COLUMNS = (
    "topic string, event_at timestamp, text string, publisher string, "
    "latency_ms double, size_bytes long, in_order boolean"
)
WORD = r"\\p{L}[\\p{L}\\p{M}\\x{2019}-]*"
"""A word begins with a letter; hyphens and apostrophes may join it. Numbers are not words."""
WORDS_OF_A_MESSAGE = 1_000
TOP_WORDS = 10
WORDS_TRACKED = 10_000
"""Spark counts words by a sketch of so many; with fewer different words in a window the counts are exact."""


def query(spark: SparkSession, lake: Lake, plan: Plan) -> DataStreamWriter:
    """The query from silver to gold, and to the topic where results are published."""
    window_s = lake.manifest().window_s
    reader = spark.readStream.format(FORMAT).option("lake", str(lake.folder)).option("table", "silver")
    rows = reader.option("maxRowsPerTrigger", plan.batch_rows).schema(COLUMNS).load()
    figures = sum_up(rows.withWatermark("event_at", f"{plan.watermark_s} seconds"), window_s)
    return figures.writeStream.outputMode("update").foreachBatch(partial(store, lake, plan))


def sum_up(rows: DataFrame, window_s: int) -> DataFrame:
    """The figures of each topic and window. A message is as many rows as it has words, of which the first counts it."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    words = F.expr(f"slice(regexp_extract_all(lower(text), '{WORD}', 0), 1, {WORDS_OF_A_MESSAGE})")
    rows = rows.select("*", F.posexplode_outer(words).alias("place", "word"))
    first = F.coalesce(F.col("place"), F.lit(0)) == 0

    def of_messages(name: str) -> object:
        return F.when(first, F.col(name))

    found = rows.groupBy("topic", F.window("event_at", f"{window_s} seconds").alias("window")).agg(
        F.count_if(first).alias("messages"),
        F.sum(of_messages("size_bytes")).alias("size_bytes"),  # type: ignore[arg-type]
        F.max(of_messages("size_bytes")).alias("size_max"),  # type: ignore[arg-type]
        F.percentile_approx(of_messages("latency_ms"), [0.5, 0.95, 0.99], 1000).alias("latencies"),  # type: ignore[arg-type]
        F.approx_count_distinct("publisher").alias("publishers"),
        F.count_if(first & ~F.col("in_order")).alias("backwards"),
        F.expr(f"approx_top_k(word, {TOP_WORDS}, {WORDS_TRACKED}) filter (where word is not null)").alias("top"),
    )
    return found.select(
        "topic",
        F.col("window.start").alias("window_start"),
        F.col("window.end").alias("window_end"),
        "messages",
        (F.col("messages") / window_s).alias("rate"),
        "size_bytes",
        (F.col("size_bytes") / F.col("messages")).alias("size_mean"),
        "size_max",
        *(F.col("latencies")[place].alias(f"latency_p{n}_ms") for place, n in enumerate((50, 95, 99))),
        "publishers",
        "backwards",
        F.transform("top", lambda each: F.struct(each["item"].alias("word"), each["count"].alias("count"))).alias(
            "top_words"
        ),
    )


def store(lake: Lake, plan: Plan, rows: DataFrame, batch: int) -> None:
    """One micro-batch: the windows that have changed."""
    table, app = lake.table(NAME), lake.app(NAME)
    changed = rows.toArrow().cast(GOLD)
    if changed.num_rows and not table.has_done(app, batch):
        replace(rows.sparkSession, table, changed, app, batch)
    if plan.publish is not None:
        publish(rows.sparkSession, plan, changed, app, batch)


def replace(spark: SparkSession, table: Table, changed: pa.Table, app: str, batch: int) -> None:
    """Puts windows in the place of earlier states of them. Files without any window of that time are not touched."""
    ends = pc.min_max(changed.column("window_start")).as_py()
    begin, end = ends["min"], ends["max"]
    touched = [each for each in table.live() if each["max.window_start"] >= begin and each["min.window_start"] <= end]
    paths = [each["path"] for each in touched]
    news = spark.createDataFrame(changed)
    old = read_parts(spark, table.open(), table.folder, paths)
    kept = old.join(news.select("topic", "window_start"), ["topic", "window_start"], "left_anti")
    recent = kept.where(kept.window_start >= begin).select(*GOLD.names).unionByName(news)
    written = table.write(recent.coalesce(1), batch)
    if any(each["min.window_start"] < begin for each in touched):
        # Older windows get a file of their own, which the next batches leave alone.
        written += table.write(kept.where(kept.window_start < begin).coalesce(1), batch)
    table.commit(written, app, batch, instead_of=paths)


def publish(spark: SparkSession, plan: Plan, changed: pa.Table, app: str, batch: int) -> None:
    """Puts the windows on the bus as JSON, with their topic as key. The broker takes each batch once."""
    assert plan.publish is not None
    if changed.num_rows == 0:
        return
    rows = spark.createDataFrame(changed).selectExpr("topic as key", "to_json(struct(*)) as value")
    writer = rows.coalesce(1).write.format("tidings").options(**plan.door_options())
    writer.options(topic=plan.publish, query=app, batch=batch).mode("append").save()
