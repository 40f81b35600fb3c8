"""Lakes with faults planted in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tests.spark.conftest import Place
from tidings.spark.arrow import record_batches
from tidings.spark.audit.report import Subject
from tidings.spark.audit.run import Request, audit
from tidings.spark.options import Door

Row = dict[str, Any]


def door(place: Place) -> Door:
    return Door(place.broker.address, None, None, None, 20.0)


def rows_of(place: Place, *topics: str) -> list[Row]:
    """The messages of topics as rows, read without Spark."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from tidings.spark.schema import COLUMNS

    schema = to_arrow_schema(COLUMNS, timezone="UTC")
    tables = [pa.Table.from_batches(record_batches(place.bus.read(topic), schema), schema) for topic in topics]
    rows = pa.concat_tables(tables).to_pylist()
    for row in rows:
        row["headers"] = None if row["headers"] is None else dict(row["headers"])
    return rows


def lake_of(rows: list[Row], lake: Path, files: int = 3, **options: Any) -> Path:
    """A lake whose bronze table has these rows, in several files."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from tidings.spark.schema import COLUMNS

    schema = to_arrow_schema(COLUMNS, timezone="UTC")
    for number in range(files):
        part = pa.Table.from_pylist(rows[number::files], schema)
        write_deltalake(lake / "bronze", part, mode="append", **options)
    return lake


def subjects(place: Place, request: Request) -> dict[str, Subject]:
    """What an audit finds of each topic."""
    return {subject.topic: subject for subject in audit(place.spark, request).subjects}


def faults(subject: Subject) -> list[tuple[str, int | None]]:
    return [(fault.kind, fault.offset) for fault in subject.faults]


def figures(subject: Subject) -> dict[str, int]:
    """The faults that were counted, by kind."""
    kinds = ("lost", "doubled", "reordered", "unknown", "changed")
    return {kind: getattr(subject, kind) for kind in kinds if getattr(subject, kind)}


def table_of(lake: Path) -> DeltaTable:
    return DeltaTable(lake / "bronze")
