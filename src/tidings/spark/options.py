"""The options of the data source, read and checked once.

Spark hands all options over as text; a name's upper and lower case do not matter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Literal

from tidings.errors import InvalidRequest
from tidings.message import check_name, check_topic

Place = Literal["earliest", "latest"] | int | datetime
"""A position in a topic: an end of it, an offset, or what was stored at or after a time."""

COMMON = frozenset({"bus", "topic", "path", "user", "keys", "serverkey", "timeout"})
READING = COMMON | {
    *("startingoffsets", "endingoffsets", "excepttopics"),
    *("maxmessagespertrigger", "tasks", "failondataloss"),
}
WRITING = COMMON | {"query", "batch", "checkpointlocation", "queryname"}
"""Spark itself puts `path`, `checkpointLocation` and `queryName` among the options."""

TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Door:
    """How to reach the broker."""

    bus: str | None
    user: str | None
    keys: str | None
    server_key: str | None
    timeout_s: float


@dataclass(frozen=True)
class Reading:
    """What a reader wants."""

    door: Door
    topics: tuple[str, ...]
    """Names, or patterns with `*`."""
    except_topics: tuple[str, ...]
    """The same for what is not read although it fits."""
    starting: Place | Mapping[str, Place]
    ending: Place | Mapping[str, Place]
    messages_max: int | None
    tasks: int | None
    fail_on_data_loss: bool

    @property
    def has_pattern(self) -> bool:
        """Whether topics may come that are not there yet."""
        return any("*" in each for each in self.topics)

    def wants(self, topic: str) -> bool:
        """Whether a topic is one of those that are read."""
        return _fits(topic, self.topics) and not _fits(topic, self.except_topics)


@dataclass(frozen=True)
class Writing:
    """What a writer wants."""

    door: Door
    topic: str | None
    query: str | None
    batch: int | None


def read_options(given: Mapping[str, str], streaming: bool) -> Reading:
    """The options of a reader, or InvalidRequest saying which one is wrong."""
    options = _known(given, READING)
    text = options.get("topic") or options.get("path")
    if not text:
        raise InvalidRequest('The option "topic" is missing: name one topic, several with commas, or a pattern with *.')
    topics = _names(text)
    if streaming and "endingoffsets" in options:
        raise InvalidRequest("A stream has no end: omit endingOffsets, or read the range with spark.read.")
    return Reading(
        _door(options),
        topics,
        _names(options.get("excepttopics")),
        _places(options.get("startingoffsets"), "startingOffsets", "latest" if streaming else "earliest"),
        _places(options.get("endingoffsets"), "endingOffsets", "latest"),
        _count(options, "maxmessagespertrigger", "maxMessagesPerTrigger"),
        _count(options, "tasks", "tasks"),
        _truth(options, "failondataloss", "failOnDataLoss", True),
    )


def write_options(given: Mapping[str, str]) -> Writing:
    """The options of a writer, or InvalidRequest saying which one is wrong."""
    options = _known(given, WRITING)
    text = options.get("topic") or options.get("path")
    query, batch = options.get("query"), options.get("batch")
    if (query is None) != (batch is None):
        raise InvalidRequest("The options query and batch belong together: give both, or neither.")
    if batch is not None and not batch.isdecimal():
        raise InvalidRequest(f"The option batch must be the number of a batch, 0 or more, not {batch!r}.")
    return Writing(
        _door(options),
        check_topic(text) if text else None,
        check_name(query) if query is not None else None,
        int(batch) if batch is not None else None,
    )


def _names(text: str | None) -> tuple[str, ...]:
    """Topics and patterns with commas between them."""
    return tuple(dict.fromkeys(check_topic(each.strip()) for each in text.split(","))) if text else ()


def _known(given: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    options = {name.lower(): value for name, value in given.items()}
    unknown = sorted(set(options) - names)
    if unknown:
        raise InvalidRequest(f"There is no option {unknown[0]!r} here: docs/spark.md lists them.")
    return options


def _door(options: Mapping[str, str]) -> Door:
    text = options.get("timeout", str(TIMEOUT_S))
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = 0.0
    if not 0 < timeout_s <= 86_400:
        raise InvalidRequest(f"The option timeout must be a number of seconds above 0, not {text!r}.")
    return Door(options.get("bus"), options.get("user"), options.get("keys"), options.get("serverkey"), timeout_s)


def _count(options: Mapping[str, str], name: str, shown: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InvalidRequest(f"The option {shown} must be a number above 0, not {text!r}.")
    return int(text)


def _truth(options: Mapping[str, str], name: str, shown: str, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise InvalidRequest(f"The option {shown} must be true or false, not {text!r}.")
    return text == "true"


def _places(text: str | None, shown: str, default: Literal["earliest", "latest"]) -> Place | Mapping[str, Place]:
    if text is None:
        return default
    if not text.lstrip().startswith("{"):
        return parse_place(text, shown)
    try:
        table = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"The option {shown} is not valid JSON ({error}): write {{'topic': offset}}.") from error
    return {check_topic(topic): parse_place(str(place), shown) for topic, place in table.items()}


def parse_place(text: str, shown: str) -> Place:
    """An end, an offset or a time; a time without a zone is taken as UTC.

    >>> parse_place("earliest", "startingOffsets"), parse_place("17", "startingOffsets")
    ('earliest', 17)
    >>> parse_place("2026-03-01T12:00:00Z", "startingOffsets").timestamp()
    1772366400.0
    """
    text = text.strip()
    if text in ("earliest", "latest"):
        return text  # type: ignore[return-value]
    if text.isdecimal():
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequest(
            f"The option {shown} must be earliest, latest, an offset, a time such as 2026-03-01T12:00:00Z, "
            f'or JSON such as {{"news": 17}}, not {text!r}.'
        ) from error
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


def _fits(topic: str, patterns: tuple[str, ...]) -> bool:
    return any(topic == each or ("*" in each and fnmatchcase(topic, _glob(each))) for each in patterns)


def _glob(pattern: str) -> str:
    """Only `*` means something in a pattern; brackets and question marks stand for themselves."""
    return re.sub(r"[\[?]", lambda found: f"[{found.group()}]", pattern)
