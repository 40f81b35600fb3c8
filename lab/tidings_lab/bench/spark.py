"""Spark: topics as tables and streams, beside Spark's own sources in the same session."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from tidings.errors import InvalidRequest
from tidings.spark import INSTALL
from tidings.spark.session import check_java
from tidings_lab.bench.figures import Figure, Limit, at_least, ratio_at_least, ratio_at_most
from tidings_lab.bench.plan import Plan
from tidings_lab.bench.stage import Stage

WARM_UP_READS = 6
"""The JVM compiles what it does often; the first reads of either side take up to three times as long as later ones, and
on a busy machine it goes on compiling for several more.
"""


def steps(plan: Plan) -> int:
    """How many steps it takes."""
    return 2 + 3 * plan.rounds


def check() -> None:
    """Raises InvalidRequest when there is no Spark to measure."""
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
        raise InvalidRequest(INSTALL)
    check_java()


Samples = dict[str, list[float]]


def run(on: Stage) -> list[Figure]:
    """Everything about Spark, in one session, which takes a few rounds to warm up."""
    plan = on.plan
    count, each = plan.spark_messages, plan.spark_batch_messages
    broker = on.broker()
    publisher, driver = on.worker(broker.address, "publisher"), on.worker()
    parquet = str(on.folder / "parquet")
    on.step(f"publishing {count:,} messages and starting Spark")
    publisher.ask("publish_records", topic="rows", count=count)
    publisher.stop()
    on.raw["spark"] = driver.ask("spark_start", folder=str(on.folder / "warehouse"))
    driver.ask("spark_to_parquet", address=broker.address, topic="rows", path=parquet)
    source = {"address": broker.address, "topic": "rows"}
    on.step("warming up")
    for _ in range(WARM_UP_READS):
        driver.ask("spark_read", **source)
        driver.ask("spark_read_parquet", path=parquet)
        driver.ask("spark_read_ready", rows=count)
    driver.ask("spark_stream", **source, folder=str(on.folder / "warm"), each=each, to_topic="warm")
    rates: Samples = {"ours": [], "parquet": [], "ready": [], "stream": [], "sink": []}
    batches: Samples = {"ours to a topic": [], "rate to a topic": [], "ours": [], "rate": []}
    for number in range(plan.rounds):
        on.step(f"round {number + 1} of {plan.rounds}: a table of {count:,} rows, ours and Parquet")
        rates["ours"].append(count / driver.ask("spark_read", **source))
        rates["parquet"].append(count / driver.ask("spark_read_parquet", path=parquet))
        rates["ready"].append(count / driver.ask("spark_read_ready", rows=count))
        on.step(f"round {number + 1} of {plan.rounds}: streams of {each:,} rows a batch")
        for name, topic in (("stream", None), ("sink", f"copy-{number}")):
            folder = str(on.folder / f"{name}-{number}")
            done = driver.ask("spark_stream", **source, folder=folder, each=each, to_topic=topic)
            # The first micro-batch of a query also plans it.
            kept = done[1:] or done
            rates[name].append(sum(rows for rows, _ in kept) / sum(seconds for _, seconds in kept))
        on.step(f"round {number + 1} of {plan.rounds}: small micro-batches, ours and Spark's rate source")
        for name, times in batches.items():
            seconds = driver.ask(
                "spark_micro_batches",
                address=broker.address,
                topic="rows" if name.startswith("ours") else None,
                folder=str(on.folder / f"small {name} {number}"),
                count=plan.spark_micro_batches,
                to_topic="small" if name.endswith("to a topic") else None,
            )
            times.append(seconds)
    on.unseen = driver.ask("spark_stop")
    on.raw |= {"rows_per_second": rates, "micro_batch_seconds": batches}
    return [*_table_figures(rates), *_stream_figures(rates, each), *_micro_batch_figures(batches)]


def _table_figures(rates: Samples) -> Iterator[Figure]:
    for name, beside, other, target in (
        ("table, all columns", "Parquet, the same rows", "parquet", ratio_at_least(0.6)),
        ("the same, beside what PySpark can", "a Python source with its rows ready", "ready", None),
    ):
        yield Figure(
            scenario="spark",
            name=name,
            value=max(rates["ours"]),
            unit="rows/s",
            limit=Limit(beside, max(rates[other])),
            target=target,
            samples=tuple(rates["ours"]),
            limit_samples=tuple(rates[other]),
        )


def _stream_figures(rates: Samples, each: int) -> Iterator[Figure]:
    for name, title, bound in (
        ("stream", f"stream, {each:,} rows a batch", 1e6),
        ("sink", "stream from topic to topic, exactly once", 6e5),
    ):
        yield Figure(
            scenario="spark",
            name=title,
            value=max(rates[name]),
            unit="rows/s",
            target=at_least(bound),
            samples=tuple(rates[name]),
        )


def _micro_batch_figures(batches: Samples) -> Iterator[Figure]:
    # Into nothing the rate source runs in the JVM alone, where no source in Python can follow it.
    for where, target in ((" to a topic", ratio_at_most(1.3)), ("", None)):
        yield Figure(
            scenario="spark",
            name=f"micro-batch of 10 rows{where}",
            value=min(batches[f"ours{where}"]),
            unit="s",
            limit=Limit(f"Spark's rate source{where}", min(batches[f"rate{where}"])),
            target=target,
            samples=tuple(batches[f"ours{where}"]),
            limit_samples=tuple(batches[f"rate{where}"]),
        )
