"""A file into a topic, each row once, however often the import is killed and run again.

The rows are published under a name that is made of the file's contents, so the broker itself knows how many of them
the topic has taken: a run asks for that number and goes on behind it. While an import is not finished a small note
lies beside the file and says what its contents were: if they have changed by the next run, that is refused, because
nobody can tell which rows of another file are the ones that are stored.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tidings.client.bus import Bus
from tidings.errors import InvalidRequest, StorageDamaged
from tidings.files.exporting import Format
from tidings.files.rows import Rows, add_csv, add_json, check_csv_columns

PIECE_ROWS = 4_096
READ_BYTES = 1 << 20
FIELD_BYTES_MAX = 64 << 20


class Note(msgspec.Struct, frozen=True):
    """What lies beside a file while it is being imported."""

    topic: str
    sha256: str


@dataclass(frozen=True)
class Imported:
    """What an import has done."""

    rows: int
    """How many the file has."""
    before: int
    """How many of them earlier runs had stored."""


def import_file(
    bus: Bus,
    path: Path,
    topic: str,
    kind: Format,
    advance: Callable[[int], object] = lambda count: None,
    name: str | None = None,
    below: str = "",
) -> Imported:
    """Publishes what the topic has not taken of the file yet; InvalidRequest when the file is another by now.

    `name` is who publishes, otherwise a name that is made of the contents, `below` coming before it.
    """
    digest = digest_of(path)
    note = path.with_name(f".{path.name}.tidings-import")
    _check_note(note, path, Note(topic, digest))
    before = path.stat()
    with bus.publisher(name or f"{below}import-{digest[:32]}") as publisher:
        done = publisher.last_sequence(topic)
        count = 0
        for rows in read_rows(path, kind):
            start = count
            count += len(rows)
            advance(len(rows))
            left = rows.after(max(0, done - start)) if start < done else rows
            if left:
                publisher.put_many(topic, left.values, left.keys, headers=left.headers, ids=left.ids)
    after = path.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise InvalidRequest(f"{path} changed during its import: restore the old contents, then run the import again.")
    if count < done:
        raise InvalidRequest(
            f"{topic!r} has taken {done} messages from the publisher {publisher.name!r}, and {path} has only {count} "
            "rows: the name belongs to another import, so choose another."
        )
    note.unlink(missing_ok=True)
    return Imported(count, done)


def digest_of(path: Path) -> str:
    """The SHA-256 of a file's contents."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_note(path: Path, file: Path, note: Note) -> None:
    """Refuses a file that has changed since its import began, and notes what it is now."""
    try:
        known = msgspec.json.decode(path.read_bytes(), type=Note)
    except FileNotFoundError:
        known = note
    except msgspec.MsgspecError as error:
        raise StorageDamaged(f"{path} cannot be read ({error}): remove it if no import of {file} is open.") from error
    if known.topic == note.topic and known.sha256 != note.sha256:
        raise InvalidRequest(
            f"{file} has changed since its import into {note.topic!r} began, which was not finished: restore the old "
            f"contents and run it again, or remove {path.name} to import it as another file."
        )
    half = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with half.open("wb") as half_file:
            half_file.write(msgspec.json.encode(note))
            half_file.flush()
            os.fsync(half_file.fileno())  # Without the note a changed file would be taken for another one.
        half.replace(path)
    except OSError as error:
        half.unlink(missing_ok=True)
        raise InvalidRequest(
            f"An import leaves a note beside its file until it is finished, and {path.parent} cannot be written "
            f"({error.strerror}): copy the file to a folder that you can write to."
        ) from error


def read_rows(path: Path, kind: Format) -> Iterator[Rows]:
    """The rows of a file, in pieces."""
    if kind == "json":
        return _read_json(path)
    return _read_csv(path) if kind == "csv" else _read_parquet(path)


def _read_json(path: Path) -> Iterator[Rows]:
    rows = Rows()
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                with _naming(path, number):
                    add_json(rows, line)
            if len(rows) >= PIECE_ROWS:
                yield rows
                rows = Rows()
    if rows:
        yield rows


def _read_csv(path: Path) -> Iterator[Rows]:
    csv.field_size_limit(FIELD_BYTES_MAX)
    rows = Rows()
    with path.open("rb") as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        reader = csv.reader(text, strict=True)
        try:
            names = next(reader, [])
            check_csv_columns(names)
            for fields in reader:
                with _naming(path, reader.line_num):
                    if len(fields) != len(names):
                        raise InvalidRequest(f"has {len(fields)} fields, and there are {len(names)} columns")
                    add_csv(rows, dict(zip(names, fields, strict=True)))
                if len(rows) >= PIECE_ROWS:
                    yield rows
                    rows = Rows()
        except (csv.Error, UnicodeDecodeError) as error:
            raise InvalidRequest(f"{path}: line {reader.line_num} is not CSV in UTF-8 ({error}).") from error
    if rows:
        yield rows


def _read_parquet(path: Path) -> Iterator[Rows]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tidings.spark.arrow import bytes_column, headers_column, text_column

    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise InvalidRequest(f"{path} is not Parquet ({error}).") from error
    with file:
        if "value" not in file.schema_arrow.names:
            raise InvalidRequest(f"{path} has no column value: rename one.")
        wanted = [name for name in ("value", "key", "headers", "id") if name in file.schema_arrow.names]
        for batch in file.iter_batches(PIECE_ROWS, columns=wanted):
            values = bytes_column(batch, "value") or []
            if None in values:
                raise InvalidRequest(f"{path} has a row without a value: leave it out, or give it an empty one.")
            nothing = [None] * len(values)
            yield Rows(
                [value for value in values if value is not None],
                bytes_column(batch, "key") or list(nothing),
                headers_column(batch) or list(nothing),
                text_column(batch, "id") or list(nothing),
            )


class _naming:  # noqa: N801 - it reads as a word
    """Names the line in what is said about it."""

    __slots__ = ("_line", "_path")

    def __init__(self, path: Path, line: int) -> None:
        self._path = path
        self._line = line

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InvalidRequest):
            raise InvalidRequest(f"{self._path}: line {self._line} {error}.") from error
