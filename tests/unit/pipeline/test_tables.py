"""Tables without Spark: what a task writes, what a commit notes, and what a reader of commits is told (D2, D3)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from tidings.errors import StorageError
from tidings.pipeline import bronze, delta, parts
from tidings.pipeline.delta import Table, Written
from tidings.pipeline.lake import Lake, Manifest
from tidings.pipeline.parts import PartWriter
from tidings.pipeline.schema import BRONZE

NOON = datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=UTC)


def rows(topic: str, first: int, count: int) -> pa.RecordBatch:
    offsets = range(first, first + count)
    same = {"topic": topic, "publisher": "p"}
    return pa.RecordBatch.from_pylist(
        [same | {"offset": n, "value": b"%d" % n, "published_at": NOON + timedelta(seconds=n)} for n in offsets],
        schema=BRONZE,
    )


def write(table: Table, batch: int, *given: pa.RecordBatch) -> Written:
    """What `Table.write` does, in this process."""
    found = [row for part in PartWriter(str(table.folder), batch, table.schema)(given) for row in part.to_pylist()]
    actions = [AddAction(row["path"], row["size_bytes"], {}, 0, True, row["stats"]) for row in found]
    ranges = {topic: tuple(each) for row in found for topic, each in json.loads(row["ranges"]).items()}
    ids = sum(row["ids"] for row in found)
    return Written(actions, sum(row["rows"] for row in found), ranges, ids)  # type: ignore[arg-type]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    Lake(tmp_path / "lake").create(Manifest())
    return Lake(tmp_path / "lake").table("bronze")


def test_what_a_task_says_of_its_file(table: Table) -> None:
    written = write(table, 3, rows("a", 5, 2), rows("b", 0, 1), rows("a", 7, 1))
    assert written.ranges == {"a": (5, 7, 3), "b": (0, 0, 1)}
    (action,) = written.actions
    assert action.path.startswith("batch-00000003-")
    assert (table.folder / action.path).stat().st_size == action.size
    stats = json.loads(action.stats)
    assert stats["numRecords"] == 4
    assert (stats["minValues"]["offset"], stats["maxValues"]["offset"]) == (0, 7)
    assert stats["nullCount"] == {"offset": 0, "published_at": 0, "stored_at": 4}
    assert written.ids == 0
    bounds = stats["minValues"]["published_at"], stats["maxValues"]["published_at"]
    assert bounds == ("2026-03-01T12:00:00.000Z", "2026-03-01T12:00:07.001Z"), "rounded outwards, to milliseconds"
    assert pq.read_table(table.folder / action.path).column("offset").to_pylist() == [5, 6, 0, 7]


def test_a_task_without_rows_writes_nothing(table: Table) -> None:
    assert write(table, 0).actions == []
    assert write(table, 0, rows("a", 0, 0)).actions == []
    assert list(table.folder.glob("*.parquet")) == []
    table.commit(write(table, 0), "bronze/q", 0)
    assert table.version() == 0


def test_large_parts_are_cut(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "ROW_GROUP_ROWS", 10)
    monkeypatch.setattr(parts, "PART_BYTES_MAX", 1)
    written = write(table, 0, *(rows("a", first, 5) for first in range(0, 35, 5)))
    assert [json.loads(action.stats)["numRecords"] for action in written.actions] == [10, 10, 10, 5]


def test_a_batch_is_noted_with_its_rows(table: Table) -> None:
    assert not table.has_done("bronze/q", 0)
    table.commit(write(table, 0, rows("a", 0, 3)), "bronze/q", 0, {"next:a": 3})
    assert table.has_done("bronze/q", 0)
    assert not table.has_done("bronze/q", 1)
    assert not table.has_done("bronze/of another checkpoint", 0)
    assert bronze.positions(table.open(), ["a", "b"]) == {"a": 3}
    assert table.open().to_pyarrow_table() == pa.Table.from_batches([rows("a", 0, 3)])


def test_a_batch_is_committed_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by two drivers that both have written it, one of which was thought dead."""
    written = write(table, 0, rows("a", 0, 3))
    table.commit(written, "bronze/q", 0)
    table.commit(write(table, 0, rows("a", 0, 3)), "bronze/q", 0)
    assert table.open().count() == 3
    before = table.open()
    table.commit(write(table, 1, rows("a", 3, 1)), "bronze/q", 1)
    monkeypatch.setattr(table, "open", lambda: before)
    with pytest.raises(CommitFailedError):
        table.commit(write(table, 1, rows("a", 3, 1)), "bronze/q", 1)
    monkeypatch.undo()
    assert table.open().count() == 4


@pytest.mark.parametrize("change", ["none", "compacted", "cut", "cut and compacted"])
def test_readers_may_filter_by_text(table: Table, change: str) -> None:
    """Statistics must not mislead a reader: deltalake hands them to PyArrow, DuckDB and Polars as facts."""
    import duckdb
    import polars

    for batch in range(2):
        table.commit(write(table, batch, rows("a", batch * 3, 3), rows("b", batch, 1)), "bronze/q", batch)
    if "cut" in change:
        assert table.drop_before("published_at", NOON - timedelta(days=1)) == 0
        table.commit(write(table, 2, rows("b", -50, 2)), "bronze/q", 2)
        table.commit(write(table, 3, rows("a", -1, 1)), "bronze/q", 3)
        assert table.drop_before("published_at", NOON) == 3
    if "compacted" in change:
        table.open().optimize.compact()
    opened = table.open()
    wanted = (ds.field("topic") == "a") & (ds.field("publisher") == "p") & (ds.field("offset") > 3)
    assert sorted(opened.to_pyarrow_table(columns=["offset"], filters=wanted).column("offset").to_pylist()) == [4, 5]
    dataset = opened.to_pyarrow_dataset()
    assert duckdb.sql("select count(*) from dataset where topic = 'a' and publisher = 'p'").fetchall() == [(6,)]
    found = polars.scan_pyarrow_dataset(dataset).filter(polars.col("topic") == "b").collect()
    assert sorted(found["offset"]) == [0, 1]
    assert polars.read_delta(str(table.folder)).filter(polars.col("publisher") == "p").height == 8


def test_retention_is_exact_to_the_row(table: Table) -> None:
    """A file of which some rows are older is written again, one that is all older goes, the others stay."""
    for batch in range(3):
        table.commit(write(table, batch, rows("a", batch * 3, 3)), "bronze/q", batch)
    files = {part["path"]: part["min.offset"] for part in table.live()}
    assert table.drop_before("published_at", NOON + timedelta(seconds=4)) == 4
    assert sorted(table.open().to_pyarrow_table().column("offset").to_pylist()) == [4, 5, 6, 7, 8]
    left = {part["path"]: part["min.offset"] for part in table.live()}
    assert {name: offset for name, offset in left.items() if name in files} == {
        name: offset for name, offset in files.items() if offset == 6
    }
    assert [sum(part.rows for part in found) for _, found in table.appended(0, table.version())] == [3, 3, 3, 0]
    assert table.has_done("bronze/q", 2)
    assert table.drop_before("published_at", NOON + timedelta(days=1)) == 5
    assert table.open().count() == 0


def test_gaps_are_counted(table: Table) -> None:
    """From where bronze had got to, and within a batch; not before the first message that it ever saw."""
    for batch, given in enumerate([[rows("a", 10, 2)], [rows("a", 15, 1), rows("a", 18, 2)], [rows("a", 20, 1)]]):
        written = write(table, batch, *given)
        table.commit(written, "bronze/q", batch, bronze.marks(table.open(), written))
    assert bronze.positions(table.open(), ["a"]) == {"a": 21}
    assert bronze.skipped(table.open(), ["a"]) == {"a": 5}


def test_only_what_was_appended_is_news(table: Table) -> None:
    """Compaction and retention make commits too, and must not be read as new rows."""
    for batch in range(3):
        table.commit(write(table, batch, rows("a", batch * 10, 10)), "bronze/q", batch)
    table.open().optimize.compact()
    table.drop_before("published_at", NOON + timedelta(seconds=5))
    table.commit(write(table, 3, rows("a", 30, 1)), "bronze/q", 3)
    news = dict(table.appended(0, table.version()))
    assert [sum(part.rows for part in found) for found in news.values()] == [10, 10, 10, 0, 0, 1]
    assert list(dict(table.appended(4, 6))) == [5, 6]
    assert all((table.folder / part.path).exists() for found in news.values() for part in found)


def test_a_commit_that_is_gone(table: Table) -> None:
    with pytest.raises(
        StorageError, match=r"The commit 0+1\.json of the table 'bronze' was removed before it was read"
    ):
        list(table.appended(0, 1))


def test_small_files_are_put_together(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "TIDY_COMMITS", 8)
    for batch in range(9):
        table.commit(write(table, batch, rows("a", batch, 1)), "bronze/q", batch)
    assert len(table.open().file_uris()) == 2
    assert sorted(table.open().to_pyarrow_table().column("offset").to_pylist()) == list(range(9))
    assert table.has_done("bronze/q", 8)
