"""Typed rows as tables: a msgspec Struct is the schema, for Arrow, for Spark and for SQLite alike.

    class Lookup(msgspec.Struct):
        nodes: int
        hops: int

A field is an int, a float, a str or a bool, and may be None; in a table every column may be empty. Nothing else is
taken: what is in a table should be plain to anyone who reads it, with whatever tool.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from tidings.errors import InvalidRequest

if TYPE_CHECKING:
    import pyarrow

Columns = Mapping[str, type]
"""The types of the columns, by name, in their order."""

SPARK = {int: "bigint", float: "double", str: "string", bool: "boolean"}
SQLITE = {int: "INTEGER", float: "REAL", str: "TEXT", bool: "INTEGER"}


def columns_of(kind: type[msgspec.Struct]) -> dict[str, type]:
    """The columns of a table of such rows.

    >>> class Lookup(msgspec.Struct):
    ...     nodes: int
    ...     error: str | None
    >>> columns_of(Lookup)
    {'nodes': <class 'int'>, 'error': <class 'str'>}
    """
    hints = get_type_hints(kind)
    return {name: _plain(kind, name, hints[name]) for name in kind.__struct_fields__}


def _plain(kind: type, name: str, hint: Any) -> type:
    if get_origin(hint) in (Union, types.UnionType):
        [hint] = [each for each in get_args(hint) if each is not type(None)]
    if hint not in SPARK:
        raise InvalidRequest(f"{kind.__name__}.{name} is no column of a table: make it an int, float, str or bool.")
    return hint  # type: ignore[no-any-return]


def arrow_schema(columns: Columns) -> pyarrow.Schema:
    import pyarrow

    kinds = {int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string(), bool: pyarrow.bool_()}
    return pyarrow.schema([(name, kinds[kind]) for name, kind in columns.items()])


def spark_schema(columns: Columns) -> str:
    """In Spark's words.

    >>> spark_schema({"nodes": int, "error": str})
    '`nodes` bigint, `error` string'
    """
    return ", ".join(f"`{name}` {SPARK[kind]}" for name, kind in columns.items())


def arrow_batch(columns: Columns, rows: Sequence[Mapping[str, object]]) -> pyarrow.RecordBatch:
    """Rows as Arrow columns; what a row does not have is empty."""
    import pyarrow

    values = {name: [row.get(name) for row in rows] for name in columns}
    return pyarrow.RecordBatch.from_pydict(values, schema=arrow_schema(columns))


def union_of(tables: Iterable[Columns]) -> dict[str, type]:
    """The columns of several tables side by side. One name has one type everywhere.

    >>> list(union_of([{"seed": int, "hops": int}, {"seed": int, "rule": str}]))
    ['seed', 'hops', 'rule']
    """
    found: dict[str, type] = {}
    for columns in tables:
        for name, kind in columns.items():
            if found.setdefault(name, kind) is not kind:
                raise InvalidRequest(f"The column {name} has two types: give one of them another name.")
    return found
