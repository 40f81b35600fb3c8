"""A topic, or a range of it, into a file.

The file is written under another name and gets its own when it is whole: a half-written file never looks like one.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal

from tidings.errors import InvalidRequest
from tidings.files.rows import CSV_COLUMNS, as_csv, as_json
from tidings.message import Batch

Format = Literal["csv", "json", "parquet"]
FORMATS: tuple[Format, ...] = ("csv", "json", "parquet")
ENDINGS: dict[str, Format] = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
}


def format_of(path: Path, given: Format | None) -> Format:
    """The format that was given, or that the name of a file ends with.

    >>> format_of(Path("news.csv"), None), format_of(Path("news"), "json")
    ('csv', 'json')
    """
    found = given or ENDINGS.get(path.suffix.lower())
    if found is None:
        raise InvalidRequest(f"The name {path.name!r} does not end in a known format: give csv, json or parquet.")
    return found


def export(batches: Iterable[Batch], kind: Format, path: Path | None, advance: Callable[[int], object]) -> int:
    """Writes the batches to a file, or to the output when there is no path; how many messages that were."""
    write: Callable[[Iterable[Batch], BinaryIO], None]
    write = {"csv": _write_csv, "json": _write_json, "parquet": _write_parquet}[kind]
    counted = _Counted(batches, advance)
    if path is None:
        if kind == "parquet":
            raise InvalidRequest("Parquet is not text: name a file with --out.")
        sys.stdout.flush()
        write(counted, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    else:
        with _whole_or_nothing(path) as file:
            write(counted, file)
    return counted.count


class _Counted:
    """Counts messages as they pass."""

    def __init__(self, batches: Iterable[Batch], advance: Callable[[int], object]) -> None:
        self.count = 0
        self._batches = batches
        self._advance = advance

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            yield batch
            self.count += len(batch)
            self._advance(len(batch))


@contextlib.contextmanager
def _whole_or_nothing(path: Path) -> Iterator[BinaryIO]:
    half = path.with_name(f".{path.name}.{os.getpid()}.half")
    try:
        with half.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def _write_json(batches: Iterable[Batch], file: BinaryIO) -> None:
    file.writelines(b"".join(as_json(batch)) for batch in batches)


def _write_csv(batches: Iterable[Batch], file: BinaryIO) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(CSV_COLUMNS)
    for batch in batches:
        writer.writerows(as_csv(batch))
        file.write(text.getvalue().encode())
        text.seek(0)
        text.truncate()
    file.write(text.getvalue().encode())


def _write_parquet(batches: Iterable[Batch], file: BinaryIO) -> None:
    import pyarrow.parquet as pq

    from tidings.spark.arrow import COLUMNS, record_batches

    with pq.ParquetWriter(file, COLUMNS) as writer:
        for rows in record_batches(batches, COLUMNS):
            writer.write_batch(rows)
