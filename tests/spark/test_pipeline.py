"""The whole pipeline on a broker: exactly once over failures at every step, and for every reader (D2, D3)."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.integration.broker_process import ROOT
from tests.spark.conftest import Place, needs_java
from tests.spark.lakes import command, rows_of, run_once
from tests.spark.test_stream import until
from tidings.errors import InvalidRequest, TidingsError
from tidings.pipeline.delta import Table
from tidings.pipeline.lake import Lake
from tidings.pipeline.origin import check_origin
from tidings.pipeline.plan import Plan
from tidings.pipeline.report import write_report
from tidings.pipeline.run import Pipeline, prepare
from tidings.pipeline.status import status
from tidings.pipeline.upkeep import compact, retain
from tidings.spark import lake_table
from tidings.spark.planning import DataLoss

PAGE = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
RESULTS = "figures"
FAILURES = (
    *("before bronze", "after bronze", "after rejected", "after silver"),
    *("before publishers", "after publishers", "before gold", "after gold"),
)


@contextmanager
def failing(moment: str, table: str) -> Iterator[None]:
    """Commits to a table fail, before they are made or after: to Spark it is as if the driver had died there."""
    commit = Table.commit

    def trapped(self: Table, *arguments: Any, **named: Any) -> None:
        if self.name == table and moment == "before":
            raise ConnectionAbortedError(f"before {table}")
        commit(self, *arguments, **named)
        if self.name == table:
            raise ConnectionAbortedError(f"after {table}")

    Table.commit = trapped  # type: ignore[method-assign]
    try:
        yield
    finally:
        Table.commit = commit  # type: ignore[method-assign]


def published(place: Place, topics: list[str]) -> list[tuple[str, int, bytes, str]]:
    """What the bus has, as bronze should have it."""
    found = []
    for topic in sorted(topics):
        for batch in place.bus.read(topic):
            for number, value in enumerate(batch.values):
                found.append((topic, batch.first_offset + number, value, batch.columns.publisher))
    return found


def check_exact(place: Place, lake: Lake, topics: list[str]) -> None:
    """Bronze is what the bus has; silver and rejected are bronze; gold counts silver."""
    bronze = rows_of(lake, "bronze")
    rows = [(row["topic"], row["offset"], row["value"], row["publisher"]) for row in bronze]
    assert rows == published(place, topics)
    upper = [(row["topic"], row["offset"]) for table in ("silver", "rejected") for row in rows_of(lake, table)]
    assert sorted(upper) == [(row["topic"], row["offset"]) for row in bronze]
    gold = rows_of(lake, "gold")
    assert sum(row["messages"] for row in gold) == len(rows_of(lake, "silver"))
    assert len({(row["topic"], row["window_start"]) for row in gold}) == len(gold)


def check_published(place: Place, lake: Lake) -> None:
    """Each state of a window went to the bus once, and the last one is that of gold."""
    told = [json.loads(value) for value in place.values(RESULTS)]
    states = [(each["topic"], each["window_start"], each["messages"]) for each in told]
    assert len(set(states)) == len(states)
    last = {(each["topic"], each["window_start"]): each["messages"] for each in told}
    gold = rows_of(lake, "gold")
    assert last == {(row["topic"], f"{row['window_start']:%Y-%m-%dT%H:%M:%S}.000Z"): row["messages"] for row in gold}


@pytest.mark.timeout(1200)
def test_once_and_only_once(place: Place, spark: Any, tmp_path: Path) -> None:
    """D2, D3: one lake goes through everything, because what takes time is Spark, and not the asserts."""
    lake = Lake(tmp_path / "lake")
    plan = Plan(place.broker.address, batch_rows=150, publish=RESULTS, watermark_s=3600)
    place.bus.put_many("cats", [f"I have {number} cats" for number in range(200)])
    place.bus.put("cats", b"\xff")
    place.bus.put("dogs", "one dog", key="k", headers={"h": b"1"}, id="d1")
    for failure in FAILURES:
        moment, table = failure.split()
        with failing(moment, table), pytest.raises(TidingsError, match=f"ConnectionAbortedError: {moment} {table}"):
            run_once(spark, lake, plan)
        place.bus.put("dogs", f"after a failure {moment} {table}")
    run_once(spark, lake, plan)
    check_exact(place, lake, ["cats", "dogs"])
    check_published(place, lake)
    while_it_runs(place, spark, lake, plan)
    run_once(spark, lake, plan)  # The stop may have come between gold and what it publishes.
    check_exact(place, lake, ["cats", "dogs", "news"])
    check_published(place, lake)
    what_readers_see(spark, lake)
    upkeep(place, spark, lake)
    a_page(lake, tmp_path)
    without_its_checkpoint(place, spark, lake, plan)


def while_it_runs(place: Place, spark: Any, lake: Lake, plan: Plan) -> None:
    """New topics are taken up, tables can be compacted, a second pipeline is refused, and a stop is clean."""
    stop, failures = threading.Event(), []

    def serve() -> None:
        try:
            with lake.locked():
                prepare(lake, plan, None)
                Pipeline(spark, lake, plan, ["cats", "dogs"]).keep_running(0.2, None, stop)
        except TidingsError as error:
            failures.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        place.bus.put_many("news", ["a new topic", "of 2 messages"])
        until(lambda: bool(failures) or any(row["topic"] == "news" for row in rows_of(lake, "gold")), seconds=240)
        assert not failures
        done = {each.table: each for each in compact(lake)}
        assert done["bronze"].files_after == 1
        assert done["gold"].skipped and done["publishers"].skipped
        with pytest.raises(InvalidRequest, match="Another pipeline runs on"):
            run_once(spark, lake, plan)
        with pytest.raises(InvalidRequest, match="A pipeline runs on"):
            retain(lake, None, 0, datetime.now(UTC))
        place.bus.put("news", "after the compaction")
        counted = lambda: sum(row["messages"] for row in rows_of(lake, "gold") if row["topic"] == "news")  # noqa: E731
        until(lambda: bool(failures) or counted() == 3, seconds=240)
        assert not failures
        found = status(lake, place.bus)
        assert found.running
        assert {topic.name: topic.lag for topic in found.topics} == {"cats": 0, "dogs": 0, "news": 0}
    finally:
        stop.set()
        thread.join()
    assert not failures


def what_readers_see(spark: Any, lake: Lake) -> None:
    """pandas, Polars, DuckDB and Spark read the same rows, none of them with a JAR or an extension."""
    import duckdb
    import polars
    from deltalake import DeltaTable

    table = DeltaTable(lake.folder / "silver")
    expected = {row["words"] for row in rows_of(lake, "silver")}
    assert "I have one hundred and ninety-nine cats" in expected
    assert set(polars.from_arrow(table.to_pyarrow_table())["words"]) == expected  # type: ignore[call-overload,index]
    silver = table.to_pyarrow_dataset()  # DuckDB finds it by this name.
    assert silver is not None
    assert {row[0] for row in duckdb.sql("select words from silver").fetchall()} == expected
    gold = DeltaTable(lake.folder / "gold").to_pyarrow_dataset()
    assert gold is not None
    assert duckdb.sql("select sum(messages) from gold where topic = 'news'").fetchall() == [(3,)]
    assert {row.words for row in lake_table(spark, lake.folder, "silver").select("words").collect()} == expected
    assert set(table.to_pyarrow_table(columns=["words"]).to_pandas()["words"]) == expected
    total = lake_table(spark, lake.folder, "gold").selectExpr("sum(messages)").first()
    assert total is not None and total[0] == len(rows_of(lake, "silver"))
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(programs) == 3
    for program in programs:
        exec(compile(program.replace('"lake/', f'"{lake.folder}/'), "pipeline.md", "exec"), {"spark": spark})  # noqa: S102 - our own page


def upkeep(place: Place, spark: Any, lake: Lake) -> None:
    """Compaction and cleaning change no row; retention takes old rows and nothing else."""
    before = {name: rows_of(lake, name) for name in ("bronze", "silver", "rejected", "gold")}
    orphan = lake.folder / "bronze" / "batch-00000099-of-a-killed-task.parquet"
    orphan.write_bytes(b"half a file")
    kept = lake_table(spark, lake.folder, "bronze")
    assert {each.table: each.skipped for each in compact(lake)}["gold"] is False
    assert retain(lake, None, 7 * 86_400_000, datetime.now(UTC))[0].files == 0, "a young file may be a task's"
    assert orphan.exists()
    assert kept.count() == len(before["bronze"])
    assert retain(lake, None, 0, datetime.now(UTC))[0].files > 1
    assert not orphan.exists()
    assert {name: rows_of(lake, name) for name in before} == before
    assert status(lake).late == 0
    cut = min(row["stored_at"] for row in before["bronze"] if row["topic"] == "news")
    gone = {each.table: each.rows for each in retain(lake, 1, 0, cut)}
    assert gone["bronze"] == sum(row["stored_at"] < cut - timedelta(milliseconds=1) for row in before["bronze"]) > 0
    left = rows_of(lake, "bronze")
    assert left == [row for row in before["bronze"] if row in left]
    assert status(lake, place.bus).topics[0].lag == 0, "positions outlive the rows"


def a_page(lake: Lake, folder: Path) -> None:
    write_report(lake, status(lake), folder / "report.html")
    page = (folder / "report.html").read_text()
    assert page.count("<svg") == 2
    assert "<td>news</td>" in page
    assert "compaction (1)" in page


def without_its_checkpoint(place: Place, spark: Any, lake: Lake, plan: Plan) -> None:
    """Bronze itself knows where to go on. And another bus is not taken for the same."""
    shutil.rmtree(lake.checkpoint("bronze"))
    place.bus.put("news", "one more")
    before = len(rows_of(lake, "bronze"))
    run_once(spark, lake, plan, topics=[info.name for info in place.bus.topics()])
    assert len(rows_of(lake, "bronze")) == before + 1
    check_origin(lake, place.bus)


def test_another_bus_is_refused(build: Callable[..., Place], spark: Any, tmp_path: Path) -> None:
    first, second = build(), build()
    lake = Lake(tmp_path / "lake")
    first.bus.put_many("news", ["a", "b"])
    run_once(spark, lake, Plan(first.broker.address), ("bronze",))
    check_origin(lake, first.bus)
    second.bus.put("news", "a")
    with pytest.raises(InvalidRequest, match="up to offset 2, and the bus ends at 1"):
        check_origin(lake, second.bus)
    second.bus.put("news", "c")
    with pytest.raises(InvalidRequest, match=r"The message at offset 1 of 'news' .* is not the one on the bus"):
        check_origin(lake, second.bus)


def test_what_the_bus_removed_is_counted(build: Callable[..., Place], spark: Any, tmp_path: Path) -> None:
    place = build(retain_bytes=1_000, segment_records_max=20)
    lake = Lake(tmp_path / "lake")
    place.bus.put("in", "0")
    run_once(spark, lake, Plan(place.broker.address), ("bronze",))
    for number in range(1, 200):
        place.bus.put("in", str(number))
    until(lambda: place.bus.topic("in").first_offset > 1)
    with pytest.raises(DataLoss, match=r"\d+ messages of 'in' from 1 to 200 are not there"):
        run_once(spark, lake, Plan(place.broker.address), ("bronze",))
    run_once(spark, lake, Plan(place.broker.address, fail_on_data_loss=False), ("bronze",))
    offsets = [row["offset"] for row in rows_of(lake, "bronze")]
    low = offsets[1]
    assert offsets == [0, *range(low, 200)]
    assert status(lake, place.bus).topics[0].skipped == low - 1 > 0


def kill_commands(place: Place, folder: Path, traps: list[str]) -> None:
    """`tidings pipeline run` is killed at each of these moments with all of its processes, and ends well at last."""
    lake = Lake(folder / "lake")
    arguments = ["pipeline", "run", "--once", "--bus", place.broker.address, "--lake", str(lake.folder)]
    arguments += ["--master", "local[2]", "--batch-rows", "300", "--publish", RESULTS]
    place.bus.put_many("cats", [f"I have {number} cats" for number in range(1_000)])
    log = folder / "log"
    for trap in traps:
        assert command(*arguments, trap=trap, log=log) == -9, log.read_text(errors="replace")[-3000:]
        place.bus.put("dogs", f"after {trap}")
    assert command(*arguments, log=log) == 0, log.read_text(errors="replace")[-3000:]
    check_exact(place, lake, ["cats", "dogs"])
    check_published(place, lake)
    assert len(list((lake.folder / "bronze").glob("*.parquet"))) > len(lake.table("bronze").open().file_uris())
    retain(lake, None, 0, datetime.now(UTC))
    assert len(list((lake.folder / "bronze").glob("*.parquet"))) == len(lake.table("bronze").open().file_uris())


@needs_java
@pytest.mark.soak  # A minute of its own; `test_kills` kills what flows through a pipeline in every run.
@pytest.mark.timeout(1200)
def test_the_command_is_killed(place: Place, tmp_path: Path) -> None:
    """D3: when parts of bronze are written and not committed; when silver is committed, and nothing after it."""
    kill_commands(place, tmp_path, ["before:bronze:2", "after:silver:2"])


@needs_java
@pytest.mark.soak
def test_the_command_is_killed_everywhere(place: Place, tmp_path: Path) -> None:
    """D3: around the first commit of each table in a run; and when parts are written, of which the first has none."""
    tables = ("bronze", "silver", "publishers", "gold")
    firsts = [f"{moment}:{table}:1" for table in tables for moment in ("before", "after")]
    kill_commands(place, tmp_path, ["before:bronze:2", *firsts])


@needs_java
@pytest.mark.soak  # A minute of its own.
@pytest.mark.timeout(1200)
def test_a_run_that_is_stopped_half_way_says_so(place: Place, tmp_path: Path) -> None:
    """SIGTERM after the first commit of bronze: silver and gold are still to do, and the next run does them."""
    lake, log = Lake(tmp_path / "lake"), tmp_path / "log"
    place.bus.put_many("cats", [f"I have {number} cats" for number in range(1_000)])
    arguments = ["pipeline", "run", "--once", "--bus", place.broker.address, "--lake", str(lake.folder)]
    arguments += ["--master", "local[2]", "--batch-rows", "300", "--publish", RESULTS]
    assert command(*arguments, trap="after:bronze:1:term", log=log) == 1
    assert "The run was stopped before it was done: run it again" in log.read_text()
    assert command(*arguments, log=log) == 0, log.read_text(errors="replace")[-3000:]
    check_exact(place, lake, ["cats"])


def test_whether_a_run_was_stopped_early(place: Place, spark: Any, tmp_path: Path) -> None:
    lake, plan, stop = Lake(tmp_path / "lake"), Plan(place.broker.address), threading.Event()
    with lake.locked():
        prepare(lake, plan, None)
        pipeline = Pipeline(spark, lake, plan, ())
        pipeline.once(None, stop, ("bronze",))
        assert not pipeline.stopped_early
        stop.set()
        pipeline.once(None, stop, ("silver",))
        assert pipeline.stopped_early
