"""One audit from its request to its report."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from tidings.errors import InvalidRequest
from tidings.spark.audit.completeness import audit_lake
from tidings.spark.audit.copies import By, audit_copy
from tidings.spark.audit.deliveries import audit_deliveries
from tidings.spark.audit.frames import Bronze, Journal
from tidings.spark.audit.report import Report, Subject
from tidings.spark.door import bus_of
from tidings.spark.options import Door


@dataclass(frozen=True)
class Request:
    """What to compare with what."""

    door: Door | None = None
    """The bus, if there is one."""
    lake: Path | None = None
    topics: tuple[str, ...] = ()
    """Names or patterns; all without any."""
    copy: str | None = None
    """The topic that should have every message of the one in `topics`."""
    by: By = "value"
    deliveries: tuple[Path, ...] = ()
    """Folders with delivery records."""
    complete: bool = False
    """Whether everything should have arrived by now."""
    start: int | None = None
    """The first offset that subscriptions should have been given, if their records are not to say it."""


def audit(spark: SparkSession, request: Request) -> Report:
    """Runs the audits that the request asks for."""
    begun_at, begun = datetime.now(UTC), time.monotonic()
    if request.copy is not None and (len(request.topics) != 1 or "*" in request.topics[0]):
        raise InvalidRequest("A copy is compared with one topic: name the one that was copied.")
    topics = (*request.topics, *(() if request.copy is None else (request.copy,)))
    lags = _lags(request.door) if request.deliveries and request.door is not None else {}
    # The lake first: whatever it holds by now, the journal has.
    bronze = None if request.lake is None else Bronze(spark, request.lake.resolve(), topics)
    journal = None if request.door is None else Journal(spark, request.door, topics)
    subjects: list[Subject] = []
    if request.copy is not None:
        messages = journal or bronze
        if messages is None:
            raise InvalidRequest("There is nothing to audit: give a bus, a lake, or both.")
        subjects.append(audit_copy(messages, request.topics[0], request.copy, request.by))
    elif bronze is not None and (journal is not None or not request.deliveries):
        subjects += audit_lake(spark, bronze, journal, request.complete)
    if request.deliveries:
        published = journal or bronze
        if published is None:
            raise InvalidRequest("Deliveries are compared with what was published: give a bus, or a lake.")
        folders = [folder.resolve() for folder in request.deliveries]
        subjects += audit_deliveries(spark, published, folders, topics, request.complete, request.start, lags)
    seconds = round(time.monotonic() - begun, 3)
    bus = None if request.door is None else request.door.bus
    lake = None if request.lake is None else str(request.lake)
    return Report(begun_at, seconds, bus, lake, tuple(subjects))


def _lags(door: Door) -> dict[tuple[str, str], int]:
    """How much each group has not acked. Asked first: what is acked by now is in the records that are read next."""
    with bus_of(door, begins=True) as bus:
        return {(group.name, group.topic): group.lag for group in bus.groups()}
