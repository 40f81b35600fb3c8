"""The columns of the data source, and what may be written."""

from __future__ import annotations

from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidings.errors import InvalidRequest

COLUMNS = StructType(
    [
        StructField("topic", StringType()),
        StructField("offset", LongType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", MapType(StringType(), BinaryType())),
        StructField("id", StringType()),
        StructField("publisher", StringType()),
        StructField("published_at", TimestampType()),
        StructField("stored_at", TimestampType()),
    ]
)
"""What a reader gives, unless it is asked for fewer columns."""

_TEXT_OR_BYTES = ("binary", "string")
WRITABLE: dict[str, tuple[str, ...]] = {
    "value": _TEXT_OR_BYTES,
    "key": _TEXT_OR_BYTES,
    "topic": ("string",),
    "headers": ("map<string,binary>", "map<string,string>"),
    "id": ("string",),
}
"""What may be written, and as which types."""


def check_readable(schema: StructType) -> None:
    """Raises InvalidRequest for a schema (given with `.schema(...)`) that the source does not have."""
    known = {field.name: field.dataType.simpleString() for field in COLUMNS}
    for field in schema:
        if field.name not in known:
            raise InvalidRequest(f"There is no column {field.name!r}: choose from {', '.join(known)}.")
        if field.dataType.simpleString() != known[field.name]:
            raise InvalidRequest(
                f"The column {field.name!r} is {known[field.name]}, not {field.dataType.simpleString()}: "
                "read it as that and cast it then."
            )


def check_writable(schema: StructType, has_topic: bool) -> None:
    """Raises InvalidRequest for rows that cannot become messages."""
    names = [field.name for field in schema]
    if "value" not in names:
        raise InvalidRequest(f"There is no column value (only {', '.join(names) or 'none at all'}): rename one.")
    for field in schema:
        wanted = WRITABLE.get(field.name)
        if wanted is None:
            raise InvalidRequest(
                f"The column {field.name!r} cannot be written: select those of {', '.join(WRITABLE)} that you have."
            )
        if _type_name(field.dataType) not in wanted:
            raise InvalidRequest(
                f"The column {field.name!r} is {_type_name(field.dataType)}, and {' or '.join(wanted)} can be "
                "written: cast it first."
            )
    if "topic" not in names and not has_topic:
        raise InvalidRequest("There is no topic to write to: give the option topic, or a column topic.")


def _type_name(kind: DataType) -> str:
    """A type's name; texts of any collation are texts."""
    if isinstance(kind, StringType):
        return "string"
    if isinstance(kind, BinaryType):
        return "binary"
    if isinstance(kind, MapType):
        return f"map<{_type_name(kind.keyType)},{_type_name(kind.valueType)}>"
    return kind.simpleString()
