"""The folder of a lake.

    lake.json       which format it has, and what must stay as it is: the windows of gold, the topics published to
    bronze/ silver/ rejected/ publishers/ gold/     Delta tables
    _checkpoints/   one folder for each of Spark's queries
    _lock           held by the pipeline that runs

Nothing but `tidings pipeline` writes into it; anybody may read the tables at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import msgspec

from tidings.errors import InvalidRequest, StorageDamaged
from tidings.pipeline.delta import Table
from tidings.pipeline.schema import TABLES

FORMAT = 1
MANIFEST = "lake.json"
CHECKPOINTS = "_checkpoints"
LOCK = "_lock"
LOCK_WAIT_S, LOCK_POLL_S = 0.5, 0.05
"""Anyone who only looks whether somebody has the lock has it for a moment."""


class Manifest(msgspec.Struct, frozen=True):
    """What a lake remembers of itself."""

    format: int = FORMAT
    window_s: int = 60
    published: tuple[str, ...] = ()
    """Topics that results went to: they are never read."""
    retained_from: datetime | None = None
    """What is older may have been removed."""


class Lake:
    """The tables below a folder."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(os.path.abspath(folder))

    def table(self, name: str) -> Table:
        """One of its tables."""
        return Table(self.folder, name)

    def create(self, manifest: Manifest) -> None:
        """Makes the lake if the folder is empty or not there; the tables that it lacks in any case."""
        if not (self.folder / MANIFEST).exists():
            if self.folder.is_dir() and any(name != LOCK for name in os.listdir(self.folder)):
                raise InvalidRequest(
                    f"{self.folder} is not a lake, and it is not empty: name another folder with --lake."
                )
            self.folder.mkdir(parents=True, exist_ok=True)
            self.write_manifest(manifest)
        self.manifest()
        for name in TABLES:
            self.table(name).create()

    def manifest(self) -> Manifest:
        """What the lake says of itself, or InvalidRequest if it is none, or none that we know."""
        path = self.folder / MANIFEST
        try:
            text = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise InvalidRequest(
                f"{self.folder} is not a lake: `tidings pipeline run --lake {self.folder}` makes one."
            ) from error
        try:
            found: Any = json.loads(text)
            number = found["format"]
        except (ValueError, KeyError, TypeError) as error:
            raise StorageDamaged(f"{path} cannot be read ({error}): restore it from a copy.") from error
        if number != FORMAT:
            raise InvalidRequest(
                f"{self.folder} is a lake of format {number}, and this tidings knows format {FORMAT}: "
                "use the version that made it, or begin a new lake."
            )
        try:
            return msgspec.convert(found, Manifest)
        except msgspec.ValidationError as error:
            raise StorageDamaged(f"{path} cannot be read ({error}): restore it from a copy.") from error

    def write_manifest(self, manifest: Manifest) -> None:
        """Replaces it in one step."""
        path = self.folder / MANIFEST
        draft = path.with_suffix(".tmp")
        with draft.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """For anyone who runs the pipeline; a second one is refused. The lock ends with the process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / LOCK).open("w") as file:
            deadline = time.monotonic() + LOCK_WAIT_S
            while not _lock(file):
                if time.monotonic() > deadline:
                    raise InvalidRequest(
                        f"Another pipeline runs on {self.folder}: stop it first, or name another folder with --lake."
                    )
                time.sleep(LOCK_POLL_S)
            yield

    def is_running(self) -> bool:
        """Whether a pipeline holds the lock."""
        with (self.folder / LOCK).open("w") as file:
            return not _lock(file)

    def checkpoint(self, query: str) -> Path:
        """Where Spark keeps the progress of a query."""
        return self.folder / CHECKPOINTS / query

    def app(self, query: str) -> str:
        """The name under which a query commits: a checkpoint that begins again is another application to Delta."""
        metadata = json.loads((self.checkpoint(query) / "metadata").read_text())
        return f"{query}/{metadata['id']}"

    def progress(self, query: str) -> tuple[int, dict[str, int]] | None:
        """The last batch that a query has finished, and how far it had read then; None before the first one."""
        checkpoint = self.checkpoint(query)
        done = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*") if path.name.isdecimal()]
        if not done:
            return None
        # A version, Spark's own notes, and then the offset of the only source, each on a line.
        offsets = (checkpoint / "offsets" / str(max(done))).read_text().splitlines()[2]
        return max(done), json.loads(offsets)


def _lock(file: IO[str]) -> bool:
    """Takes the lock until the file is closed, if nobody else has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
