"""The options of the data source: what is read out of them, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tidings.errors import InvalidRequest, InvalidTopic
from tidings.spark.options import Door, read_options, write_options


def test_defaults() -> None:
    batch = read_options({"topic": "news"}, streaming=False)
    assert batch.door == Door(None, None, None, None, 60.0)
    assert (batch.topics, batch.starting, batch.ending) == (("news",), "earliest", "latest")
    assert (batch.messages_max, batch.tasks, batch.fail_on_data_loss) == (None, None, True)
    assert read_options({"topic": "news"}, streaming=True).starting == "latest"
    writing = write_options({})
    assert (writing.topic, writing.query, writing.batch) == (None, None, None)


def test_everything_given_in_any_case() -> None:
    given = {
        "BUS": "tcp://127.0.0.1:1",
        "topic": "a, b ,a",
        "startingoffsets": '{"a": 3, "b": "latest"}',
        "endingOffsets": "2026-03-01T12:00:00+01:00",
        "MAXMESSAGESPERTRIGGER": "7",
        "tasks": "2",
        "failOnDataLoss": "False",
        "user": "etl",
        "keys": "k",
        "serverKey": "s",
        "timeout": "1.5",
    }
    reading = read_options(given, streaming=False)
    assert reading.door == Door("tcp://127.0.0.1:1", "etl", "k", "s", 1.5)
    assert (reading.topics, reading.starting) == (("a", "b"), {"a": 3, "b": "latest"})
    assert reading.ending == datetime(2026, 3, 1, 11, tzinfo=UTC)
    assert (reading.messages_max, reading.tasks, reading.fail_on_data_loss) == (7, 2, False)


def test_a_time_without_a_zone_is_utc() -> None:
    reading = read_options({"topic": "a", "startingOffsets": "2026-03-01 12:00:00"}, streaming=False)
    assert reading.starting == datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_topics_that_fit_and_are_not_read() -> None:
    reading = read_options({"topic": "*", "exceptTopics": "figures, private.*"}, streaming=True)
    wanted = [topic for topic in ("news", "figures", "figures.old", "private.a") if reading.wants(topic)]
    assert wanted == ["news", "figures.old"]


@pytest.mark.parametrize(
    ("pattern", "topic", "wanted"),
    [
        ("news", "news", True),
        ("news", "news2", False),
        ("news*", "news2", True),
        ("*.eu", "sport.eu", True),
        ("a*c", "abbbc", True),
        ("a?c", "abc", False),
        ("[ab]*", "a", False),
        ("[ab]*", "[ab]c", True),
    ],
)
def test_only_the_star_is_a_pattern(pattern: str, topic: str, wanted: bool) -> None:
    assert read_options({"topic": pattern}, streaming=False).wants(topic) is wanted


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "is missing"),
        ({"topic": "a", "startingOffsets": "{"}, "not valid JSON"),
        ({"topic": "a", "startingOffsets": '{"a": "soon"}'}, "earliest, latest"),
        ({"topic": "a", "startingOffsets": "-1"}, "earliest, latest"),
        ({"topic": "a", "maxMessagesPerTrigger": "many"}, "maxMessagesPerTrigger must be a number above 0"),
        ({"topic": "a", "tasks": "0"}, "tasks must be a number above 0"),
        ({"topic": "a", "failOnDataLoss": "maybe"}, "true or false"),
        ({"topic": "a", "timeout": "0"}, "number of seconds"),
        ({"topic": "a", "timeout": "soon"}, "number of seconds"),
        ({"topic": "a", "colour": "red"}, "no option 'colour'"),
    ],
)
def test_what_a_reader_refuses(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        read_options(options, streaming=False)


def test_what_only_some_refuse() -> None:
    with pytest.raises(InvalidTopic):
        read_options({"topic": "a,,b"}, streaming=False)
    with pytest.raises(InvalidRequest, match="A stream has no end"):
        read_options({"topic": "a", "endingOffsets": "5"}, streaming=True)
    with pytest.raises(InvalidRequest, match="belong together"):
        write_options({"query": "q"})
    with pytest.raises(InvalidRequest, match="number of a batch"):
        write_options({"query": "q", "batch": "-1"})
