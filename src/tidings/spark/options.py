"""The options of the data source, read and checked once.

Spark hands all options over as text; a name's upper and lower case do not matter.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from tidings.errors import InvalidRequest
from tidings.message import check_name, check_topic
from tidings.settings.units import duration_ms
from tidings.spark import kafka_options

Place = Literal["earliest", "latest"] | int | datetime
"""A position in a topic: an end of it, an offset, or what was stored at or after a time."""

COMMON = ("bus", "topic", "user", "keys", "serverKey", "timeout")
READING = (
    *COMMON,
    *("topicPattern", "exceptTopics", "tasks", "maxMessagesPerTask", "failOnDataLoss"),
    *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    *("maxMessagesPerTrigger", "minMessagesPerTrigger", "maxTriggerDelay"),
)
WRITING = (*COMMON, "query", "batch")
UNLISTED = (
    *("path", "checkpointLocation", "queryName"),
    *("includeHeaders", "startingOffsetsByTimestampStrategy"),
)
"""What Spark itself puts among the options, and what Kafka's users may say and changes nothing."""

TIMEOUT_S = 60.0
MAX_TRIGGER_DELAY = "15m"
EXAMPLE_MS = 1772366400000


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
    """Names, or patterns with `*`; none if there is a regular expression."""
    expression: re.Pattern[str] | None
    """What the whole name of a topic must match."""
    except_topics: tuple[str, ...]
    """The same for what is not read although it fits."""
    starting: Place | Mapping[str, Place]
    ending: Place | Mapping[str, Place]
    messages_max: int | None
    """For a micro-batch."""
    messages_min: int
    """For a micro-batch, unless the last one began so long ago:"""
    delay_ms_max: int
    tasks: int | None
    task_messages_max: int | None
    fail_on_data_loss: bool

    @property
    def has_pattern(self) -> bool:
        """Whether topics may come that are not there yet."""
        return self.expression is not None or any("*" in each for each in self.topics)

    def wants(self, topic: str) -> bool:
        """Whether a topic is one of those that are read."""
        if self.expression is None:
            found = _fits(topic, self.topics)
        else:
            found = self.expression.fullmatch(topic) is not None
        return found and not _fits(topic, self.except_topics)


@dataclass(frozen=True)
class Writing:
    """What a writer wants."""

    door: Door
    topic: str | None
    query: str | None
    batch: int | None


def read_options(given: Mapping[str, str], streaming: bool) -> Reading:
    """The options of a reader, or InvalidRequest saying which one is wrong."""
    options = _known(given, READING, "reading")
    text, expression = options.get("topic") or options.get("path"), options.get("topicpattern")
    if not text and not expression:
        raise InvalidRequest(
            'The option "topic" is missing: name one topic, several with commas, or a pattern with *; '
            "or give a regular expression as topicPattern."
        )
    if text and expression:
        raise InvalidRequest("The options topic and topicPattern exclude each other: give one of them.")
    ends = [
        name for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp") if name.lower() in options
    ]
    if streaming and ends:
        raise InvalidRequest(f"A stream has no end: omit {ends[0]}, or read the range with spark.read.")
    return Reading(
        _door(options),
        _names(text),
        _expression(expression),
        _names(options.get("excepttopics")),
        _places(options, "starting", "latest" if streaming else "earliest"),
        _places(options, "ending", "latest"),
        _count(options, "maxMessagesPerTrigger"),
        _count(options, "minMessagesPerTrigger") or 0,
        _delay_ms(options),
        _count(options, "tasks"),
        _count(options, "maxMessagesPerTask"),
        _truth(options, "failOnDataLoss", True),
    )


def write_options(given: Mapping[str, str]) -> Writing:
    """The options of a writer, or InvalidRequest saying which one is wrong."""
    options = _known(given, WRITING, "writing")
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
    """Topics and patterns with commas between them, or as JSON if a name has a comma of its own."""
    if not text:
        return ()
    names = text.split(",")
    if text.lstrip().startswith("["):
        with contextlib.suppress(msgspec.DecodeError):  # A name may begin with a bracket, too.
            names = msgspec.json.decode(text, type=list[str])
    return tuple(dict.fromkeys(check_topic(each.strip()) for each in names))


def _expression(text: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(text) if text else None
    except re.error as error:
        raise InvalidRequest(f"The option topicPattern is no regular expression of Python: {error}.") from error


def _known(given: Mapping[str, str], names: Sequence[str], what: str) -> dict[str, str]:
    """The options by our names, in lower case."""
    shown = {name.lower(): name for name in (*names, *UNLISTED)}
    options: dict[str, str] = {}
    for name, value in given.items():
        own = kafka_options.ALIASES.get(name.lower(), name).lower()
        if own not in shown:
            kafka_options.refuse(name, value)
            alike = difflib.get_close_matches(name.lower(), [*shown, *kafka_options.ALIASES], 1)
            guess = f" Did you mean {kafka_options.ALIASES.get(alike[0]) or shown[alike[0]]}?" if alike else ""
            raise InvalidRequest(f"There is no option {name!r} for {what}.{guess} The options are {', '.join(names)}.")
        kafka_options.refuse(own, value)
        if own in options:
            raise InvalidRequest(
                f"The option {shown[own]} is given twice, under Kafka's name and ours: give one of them."
            )
        options[own] = value
    if not _truth(options, "includeHeaders", True):
        raise InvalidRequest("Rows have their headers anyway: leave includeHeaders out, and drop the column headers.")
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


def _count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InvalidRequest(f"The option {name} must be a number above 0, not {text!r}.")
    return int(text)


def _truth(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise InvalidRequest(f"The option {name} must be true or false, not {text!r}.")
    return text == "true"


def _delay_ms(options: Mapping[str, str]) -> int:
    text = options.get("maxtriggerdelay")
    if text is not None and "minmessagespertrigger" not in options:
        raise InvalidRequest("The option maxTriggerDelay needs minMessagesPerTrigger: give both, or neither.")
    try:
        return duration_ms(text or MAX_TRIGGER_DELAY)
    except ValueError as error:
        raise InvalidRequest(f"The option maxTriggerDelay: {error}.") from error


def _places(
    options: Mapping[str, str], side: str, default: Literal["earliest", "latest"]
) -> Place | Mapping[str, Place]:
    """Where a read begins or ends: by offsets, by one time, or by a time for each topic."""
    given = [
        name for name in (f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp") if name.lower() in options
    ]
    if not given:
        return default
    if len(given) > 1:
        raise InvalidRequest(f"The options {' and '.join(given)} exclude each other: give one of them.")
    (shown,) = given
    text, by_time = options[shown.lower()], not shown.endswith("gOffsets")
    parse = parse_time if by_time else parse_place
    if shown.endswith("gTimestamp") or not (by_time or text.lstrip().startswith("{")):
        return parse(text, shown)
    try:
        table = json.loads(text)
    except ValueError as error:
        example = json.dumps({"topic": EXAMPLE_MS if by_time else 17})
        raise InvalidRequest(f"The option {shown} is not valid JSON ({error}): write {example}.") from error
    if not isinstance(table, dict):
        raise InvalidRequest(f"The option {shown} must be a JSON object with a place for each topic, not {text!r}.")
    return {
        check_topic(topic): parse(str(kafka_options.offset_of(topic, place, shown)), shown)
        for topic, place in table.items()
    }


def parse_time(text: str, shown: str) -> datetime:
    """Milliseconds since 1970, as Kafka's options have them, or a time.

    >>> parse_time("1772366400000", "startingTimestamp").isoformat()
    '2026-03-01T12:00:00+00:00'
    """
    text = text.strip()
    try:
        return datetime.fromtimestamp(int(text) / 1000, UTC) if text.isdecimal() else _read_time(text)
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidRequest(
            f"The option {shown} must be milliseconds since 1970 such as {EXAMPLE_MS}, or a time such as "
            f"2026-03-01T12:00:00Z, not {text!r}."
        ) from error


def _read_time(text: str) -> datetime:
    when = datetime.fromisoformat(text)
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


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
        return _read_time(text)
    except ValueError as error:
        raise InvalidRequest(
            f"The option {shown} must be earliest, latest, an offset, a time such as 2026-03-01T12:00:00Z, "
            f'or JSON such as {{"news": 17}}, not {text!r}.'
        ) from error


def _fits(topic: str, patterns: tuple[str, ...]) -> bool:
    return any(topic == each or ("*" in each and fnmatchcase(topic, _glob(each))) for each in patterns)


def _glob(pattern: str) -> str:
    """Only `*` means something in a pattern; brackets and question marks stand for themselves."""
    return re.sub(r"[\[?]", lambda found: f"[{found.group()}]", pattern)
