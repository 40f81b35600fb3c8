"""How far a lake is: its tables, its topics, what waits, what was rejected, and the last audit. It needs no Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidings.client.bus import Bus
from tidings.errors import StorageDamaged
from tidings.pipeline import bronze
from tidings.pipeline.lake import Lake
from tidings.pipeline.schema import TABLES
from tidings.pipeline.upkeep import READERS

AUDIT = "audit/last.json"


class TableStatus(msgspec.Struct, frozen=True):
    """A table by its files."""

    name: str
    rows: int
    files: int
    size_bytes: int
    version: int
    committed_at: datetime


class QueryStatus(msgspec.Struct, frozen=True):
    """A query by its checkpoint; `waiting` are rows of the table below that it has not read, None for bronze."""

    name: str
    last_batch: int | None
    finished_at: datetime | None
    waiting: int | None


class TopicStatus(msgspec.Struct, frozen=True):
    """A topic in bronze; `lag` is how many messages of the bus are not there yet, None if no bus was asked."""

    name: str
    next_offset: int
    skipped: int
    lag: int | None


class Audit(msgspec.Struct, frozen=True):
    """The last audit of the lake."""

    clean: bool
    begun_at: datetime


class Status(msgspec.Struct, frozen=True):
    """All of it."""

    lake: str
    running: bool
    tables: tuple[TableStatus, ...]
    queries: tuple[QueryStatus, ...]
    topics: tuple[TopicStatus, ...]
    rejected: dict[str, int]
    """How many rows for which reason."""
    backwards: int
    """Messages whose publisher's clock had been later before."""
    late: int | None
    """Messages of silver that came too late for gold; None while gold has rows to read, or if retention took some."""
    audit: Audit | None


def status(lake: Lake, bus: Bus | None = None) -> Status:
    """How far the lake is, and with a bus also how far behind it."""
    manifest = lake.manifest()
    tables = {name: _table(lake, name) for name in TABLES}
    queries = {name: _query(lake, name) for name in ("bronze", "silver", "gold")}
    gold = _column(lake, "gold", "messages")
    complete = manifest.retained_from is None and queries["silver"].waiting == queries["gold"].waiting == 0
    return Status(
        lake=str(lake.folder),
        running=lake.is_running(),
        tables=tuple(tables.values()),
        queries=tuple(queries.values()),
        topics=_topics(lake, bus, manifest.published),
        rejected={
            row["values"]: row["counts"] for row in pc.value_counts(_column(lake, "rejected", "reason")).to_pylist()
        },
        backwards=pc.sum(_column(lake, "publishers", "backwards")).as_py() or 0,
        late=tables["silver"].rows - (pc.sum(gold).as_py() or 0) if complete else None,
        audit=_audit(lake),
    )


def _column(lake: Lake, table: str, name: str) -> pa.ChunkedArray:
    return lake.table(table).open().to_pyarrow_table(columns=[name]).column(name)


def _table(lake: Lake, name: str) -> TableStatus:
    table = lake.table(name).open()
    parts = pa.table(table.get_add_actions(flatten=True))
    return TableStatus(
        name,
        rows=pc.sum(parts.column("num_records")).as_py() or 0,
        files=parts.num_rows,
        size_bytes=pc.sum(parts.column("size_bytes")).as_py() or 0,
        version=table.version(),
        committed_at=_at(table.history(1)[0]["timestamp"] / 1000),
    )


def _query(lake: Lake, name: str) -> QueryStatus:
    below = next((table for table, reader in READERS.items() if reader == name), None)
    progress = lake.progress(name)
    waiting = None
    if below is not None:
        table = lake.table(below)
        begun = 0 if progress is None else progress[1]["version"]
        waiting = sum(part.rows for _, parts in table.appended(begun, table.version()) for part in parts)
    if progress is None:
        return QueryStatus(name, None, None, waiting)
    batch = progress[0]
    return QueryStatus(name, batch, _at((lake.checkpoint(name) / "commits" / str(batch)).stat().st_mtime), waiting)


def _topics(lake: Lake, bus: Bus | None, published: tuple[str, ...]) -> tuple[TopicStatus, ...]:
    """What bronze has; with a bus also the topics of it that bronze has not, except those that it must not have."""
    table = lake.table("bronze").open()
    ends = {} if bus is None else {info.name: info for info in bus.topics() if info.name not in published}
    progress = lake.progress("bronze")
    names = sorted({*ends, *(progress[1] if progress is not None else {})})
    positions, skipped = bronze.positions(table, names), bronze.skipped(table, names)
    found = []
    for name in names:
        begin = positions.get(name, ends[name].first_offset if name in ends else 0)
        lag = None if bus is None else max(0, ends[name].next_offset - begin) if name in ends else 0
        found.append(TopicStatus(name, begin, skipped.get(name, 0), lag))
    return tuple(found)


def _audit(lake: Lake) -> Audit | None:
    path = lake.folder / AUDIT
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
        return Audit(bool(found["clean"]), datetime.fromisoformat(found["begun_at"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError) as error:
        raise StorageDamaged(f"{path} is not the report of an audit ({error}): remove it and audit again.") from error


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
