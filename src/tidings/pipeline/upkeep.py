"""Compaction and retention.

Both may be done while the pipeline runs: to tables that are only added to, a commit that rewrites or removes older rows
is no obstacle. The two small tables whose rows change, publishers and gold, wait for a pause of the pipeline.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec
from deltalake import DeltaTable

from tidings.errors import InvalidRequest
from tidings.pipeline.lake import Lake
from tidings.pipeline.schema import TABLES

CHANGING = ("publishers", "gold")
READERS = {"bronze": "silver", "silver": "gold"}
"""Which query reads the commits of a table."""
UNUSED_MS = 7 * 86_400_000
UNUSED_MS_MIN = 3_600_000
"""A file that no commit names may be one that a task is writing now: younger ones stay while a pipeline runs."""
VERSIONS_KEPT_MAX = 10_000


class Compacted(msgspec.Struct, frozen=True):
    """What became of the files of a table; `skipped` says that it had to wait."""

    table: str
    files_before: int
    files_after: int
    skipped: bool = False


class Retained(msgspec.Struct, frozen=True):
    """What went from a table: rows, and files that were no longer part of it."""

    table: str
    rows: int
    files: int
    skipped: bool = False


def compact(lake: Lake) -> list[Compacted]:
    """Puts small files together. Readers see the same rows before, meanwhile and after."""
    lake.manifest()
    done = []
    for name in TABLES:
        with _access(lake, name) as table:
            if table is None:
                done.append(Compacted(name, 0, 0, skipped=True))
                continue
            before = len(table.file_uris())
            if before > 1:
                table.optimize.compact()
            done.append(Compacted(name, before, len(table.file_uris())))
    return done


def retain(lake: Lake, older_than_ms: int | None, unused_ms: int, now: datetime) -> list[Retained]:
    """Removes rows that are older, and files that for so long no commit has needed.

    Such files were replaced by a compaction, held rows that retention took, or were left behind by a task that was
    killed. Those that the layer above has still to read stay.
    """
    manifest = lake.manifest()
    if unused_ms < UNUSED_MS_MIN and lake.is_running():
        raise InvalidRequest(
            f"A pipeline runs on {lake.folder}, and its tasks write files that no commit names yet: "
            "stop it first, or give --unused-for 1h or more."
        )
    before = None if older_than_ms is None else (now - timedelta(milliseconds=older_than_ms)).astimezone(UTC)
    if before is not None:
        lake.write_manifest(msgspec.structs.replace(manifest, retained_from=before))
    done = []
    for name, kind in TABLES.items():
        with _access(lake, name) as table:
            if table is None:
                done.append(Retained(name, 0, 0, skipped=True))
                continue
            rows = 0 if before is None else lake.table(name).drop_before(kind.age_column, before)
            table.update_incremental()
            done.append(Retained(name, rows, len(_vacuum(lake, name, table, unused_ms))))
    return done


def _vacuum(lake: Lake, name: str, table: DeltaTable, unused_ms: int) -> list[str]:
    """Removes files that are no part of the table, nor of a commit that is still to be read."""
    reader = READERS.get(name)
    needed: list[int] = []
    if reader is not None:
        progress = lake.progress(reader)
        begun = 0 if progress is None else progress[1]["version"]
        needed = [version for version, parts in lake.table(name).appended(begun, table.version()) if parts]
    if len(needed) > VERSIONS_KEPT_MAX:
        raise InvalidRequest(
            f"{reader} has {len(needed)} commits of {name} still to read: run the pipeline first, then clean up."
        )
    return table.vacuum(
        unused_ms // 3_600_000, dry_run=False, enforce_retention_duration=False, full=True, keep_versions=needed or None
    )


@contextlib.contextmanager
def _access(lake: Lake, name: str) -> Iterator[DeltaTable | None]:
    """The table, or None if it changes and a pipeline is changing it."""
    if name not in CHANGING:
        yield lake.table(name).open()
    elif lake.is_running():
        yield None
    else:
        with lake.locked():
            yield lake.table(name).open()
