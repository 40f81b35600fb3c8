"""What an audit found: plain data, to be shown, saved and read again. Nothing here knows Spark."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import msgspec

from tidings.errors import StorageDamaged

FAULTS_MAX = 10
"""How many offending rows a subject names; all of them are counted."""
FOLDER = "audit"
LAST = "last.json"


class Fault(msgspec.Struct, frozen=True):
    """One offending row: what is wrong, and where."""

    kind: str
    topic: str
    offset: int | None
    detail: str = ""


class Subject(msgspec.Struct, frozen=True):
    """What was found of one thing that was audited: a topic in the lake, a copy, a subscription.

    >>> Subject("lake", "news", checked=10, lost=1).clean, Subject("lake", "news", checked=10, waiting=5).clean
    (False, True)
    """

    name: str
    topic: str
    checked: int = 0
    """How many messages it was to have."""
    lost: int = 0
    doubled: int = 0
    reordered: int = 0
    unknown: int = 0
    """Arrived, and was never published."""
    changed: int = 0
    """Arrived with other contents than it was published with."""
    repeated: int = 0
    """Given out again and marked so: what at-least-once allows. No fault."""
    waiting: int = 0
    """Published and not due yet. No fault."""
    unsure: int = 0
    """Not in the records, which a power cut may have cut short: neither proven to be lost nor to have come."""
    faults: tuple[Fault, ...] = ()
    """The first offending rows."""
    notes: tuple[str, ...] = ()
    """What else a reader of the figures should know."""

    @property
    def wrong(self) -> int:
        """How many faults there are."""
        return self.lost + self.doubled + self.reordered + self.unknown + self.changed

    @property
    def clean(self) -> bool:
        """Whether it is proven that nothing is wrong with it."""
        return self.wrong == self.unsure == 0


class Tally:
    """What is being found of one subject, while an audit goes on.

    >>> tally = Tally()
    >>> tally.add("lost", 2)
    >>> tally.name([Fault("lost", "news", 7)])
    >>> tally.subject("lake", "news", checked=10).lost
    2
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._faults: list[Fault] = []
        self._notes: list[str] = []

    def add(self, kind: str, count: int) -> None:
        """So many of a kind more."""
        self._counts[kind] = self._counts.get(kind, 0) + count

    def count(self, kind: str) -> int:
        """How many of a kind there are so far."""
        return self._counts.get(kind, 0)

    def name(self, faults: Iterable[Fault]) -> None:
        """The first offending rows, or more of them."""
        self._faults.extend(faults)

    def excuse(self, kind: str, count_max: int) -> int:
        """Takes up to so many of a kind away; how many there were."""
        excused = min(self._counts.get(kind, 0), count_max)
        self._counts[kind] = self._counts.get(kind, 0) - excused
        if not self._counts[kind]:
            self._faults = [fault for fault in self._faults if fault.kind != kind]
        return excused

    def note(self, sentence: str) -> None:
        """Something that is no figure."""
        self._notes.append(sentence)

    def subject(self, name: str, topic: str, **counts: int) -> Subject:
        """The outcome, with figures that were found elsewhere."""
        return msgspec.convert(
            {
                **self._counts,
                **counts,
                "name": name,
                "topic": topic,
                "faults": self._faults[:FAULTS_MAX],
                "notes": self._notes,
            },
            Subject,
            from_attributes=True,
        )


class Report(msgspec.Struct, frozen=True):
    """The outcome of one audit."""

    begun_at: datetime
    seconds: float
    bus: str | None
    lake: str | None
    subjects: tuple[Subject, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong at all."""
        return all(subject.clean for subject in self.subjects)

    def to_json(self) -> bytes:
        """As one JSON object, with `clean` first."""
        fields = {"clean": self.clean, **msgspec.to_builtins(self)}
        return msgspec.json.encode(fields)


def save(report: Report, path: Path) -> None:
    """Writes a report; anyone who reads the file sees the old one or the new one, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{os.getpid()}")
    half.write_bytes(report.to_json() + b"\n")
    half.replace(path)


def last_of(lake: Path) -> Path:
    """Where the last audit of a lake is kept."""
    return lake / FOLDER / LAST


def last_audit(lake: Path) -> Report | None:
    """The last audit of a lake, None if there was none.

    >>> import tempfile
    >>> from datetime import UTC
    >>> lake = Path(tempfile.mkdtemp())
    >>> last_audit(lake)
    >>> save(Report(datetime(2026, 1, 1, tzinfo=UTC), 1.5, None, str(lake), ()), last_of(lake))
    >>> last_audit(lake).seconds
    1.5
    """
    path = last_of(lake)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise StorageDamaged(f"{path} is not the report of an audit ({error}): remove it and audit again.") from error
