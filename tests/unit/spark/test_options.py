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


def test_a_name_with_a_comma() -> None:
    reading = read_options({"topic": '["a,b", "c"]', "exceptTopics": '["d,e"]'}, streaming=True)
    assert (reading.topics, reading.except_topics) == (("a,b", "c"), ("d,e",))


# Every option of Spark's Kafka source and sink, and what it is here: docs/spark.md has the same table.
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
KAFKA_READING: dict[str, tuple[str, object]] = {
    "kafka.bootstrap.servers": ("tcp://127.0.0.1:1", {"door": Door("tcp://127.0.0.1:1", None, None, None, 60.0)}),
    "subscribe": ("a,b", {"topics": ("a", "b")}),
    "subscribePattern": ("news[.].+", {"topics": (), "has_pattern": True}),
    "assign": ('{"a": [0]}', "name the topics with the option topic"),
    "startingOffsets": ('{"a": {"0": 23}, "b": -2, "c": -1}', {"starting": {"a": 23, "b": "earliest", "c": "latest"}}),
    "endingOffsets": ('{"a": {"0": 23}}', {"ending": {"a": 23}}),
    "startingTimestamp": ("1772366400000", {"starting": AT}),
    "endingTimestamp": ("1772366400000", {"ending": AT}),
    "startingOffsetsByTimestamp": ('{"a": {"0": 1772366400000}}', {"starting": {"a": AT}}),
    "endingOffsetsByTimestamp": ('{"a": 1772366400000, "b": "2026-03-01T12:00:00Z"}', {"ending": {"a": AT, "b": AT}}),
    "startingOffsetsByTimestampStrategy": ("error", "leave it out"),
    "failOnDataLoss": ("false", {"fail_on_data_loss": False}),
    "maxOffsetsPerTrigger": ("7", {"messages_max": 7}),
    "minOffsetsPerTrigger": ("7", {"messages_min": 7, "delay_ms_max": 900_000}),
    "maxTriggerDelay": ("2m", "needs minMessagesPerTrigger"),
    "minPartitions": ("3", {"tasks": 3}),
    "maxRecordsPerPartition": ("7", {"task_messages_max": 7}),
    "includeHeaders": ("true", {}),
    "kafka.group.id": ("g", "joins no group"),
    "groupIdPrefix": ("g", "joins no group"),
    "kafkaConsumer.pollTimeoutMs": ("1", "the option timeout"),
    "fetchOffset.numRetries": ("1", "the option timeout"),
    "fetchOffset.retryIntervalMs": ("1", "the option timeout"),
    "kafka.security.protocol": ("SASL_SSL", "a setting of Kafka's client"),
}
KAFKA_WRITING: dict[str, tuple[str, object]] = {
    "kafka.bootstrap.servers": ("tcp://127.0.0.1:1", {"door": Door("tcp://127.0.0.1:1", None, None, None, 60.0)}),
    "topic": ("a", {"topic": "a"}),
    "includeHeaders": ("false", "drop the column headers"),
    "kafka.acks": ("all", "a setting of Kafka's client"),
}


@pytest.mark.parametrize("name", KAFKA_READING)
def test_an_option_of_the_kafka_source(name: str) -> None:
    value, found = KAFKA_READING[name]
    given = {name.lower(): value} | ({} if name in ("subscribe", "subscribePattern") else {"topic": "a"})
    if isinstance(found, str):
        with pytest.raises(InvalidRequest, match=found):
            read_options(given, streaming=False)
    else:
        reading = read_options(given, streaming=False)
        assert {each: getattr(reading, each) for each in found} == found  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", KAFKA_WRITING)
def test_an_option_of_the_kafka_sink(name: str) -> None:
    value, found = KAFKA_WRITING[name]
    if isinstance(found, str):
        with pytest.raises(InvalidRequest, match=found):
            write_options({name: value})
    else:
        writing = write_options({name: value})
        assert {each: getattr(writing, each) for each in found} == found  # type: ignore[attr-defined]


def test_kafka_options_that_need_more_than_themselves() -> None:
    patient = {"topic": "a", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "1.5s"}
    assert read_options(patient, streaming=True).delay_ms_max == 1_500
    assert read_options({"topic": "a", "startingOffsetsByTimestampStrategy": "latest"}, streaming=True)
    wants = read_options({"subscribePattern": "news[.].+", "exceptTopics": "news.b"}, streaming=True).wants
    assert [topic for topic in ("news.a", "news.b", "news.", "my news.a") if wants(topic)] == ["news.a"]
    with pytest.raises(InvalidRequest, match="given twice"):
        read_options({"topic": "a", "subscribe": "b"}, streaming=False)
    with pytest.raises(
        InvalidRequest, match='partitions 0, 1 of "a", and a topic has none: write {"a": 17}'.replace('"a",', "'a',")
    ):
        read_options({"topic": "a", "startingOffsets": '{"a": {"0": 1, "1": 2}}'}, streaming=False)


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
        ({"topic": "a", "colour": "red"}, r"no option 'colour' for reading\. The options are bus, topic,"),
        ({"topic": "a", "query": "q"}, "no option 'query' for reading"),
        ({"topic": "a", "startingOffset": "1"}, "Did you mean startingOffsets"),
        ({"topic": "a", "maxOffsetPerTrigger": "1"}, "Did you mean maxMessagesPerTrigger"),
        ({"topic": "a", "startingOffsets": "{"}, r'write \{"topic": 17\}'),
        ({"topic": "a", "startingOffsetsByTimestamp": "17"}, "a JSON object with a place for each topic"),
        ({"topic": "a", "startingTimestamp": "soon"}, "milliseconds since 1970 such as 1772366400000"),
        ({"topic": "a", "startingTimestamp": "9" * 30}, "milliseconds since 1970"),
        ({"topic": "a", "startingTimestamp": "1", "startingOffsets": "1"}, "exclude each other"),
        ({"topic": "a", "topicPattern": "a"}, "topic and topicPattern exclude each other"),
        ({"topicPattern": "("}, "no regular expression"),
        ({"topic": "a", "maxTriggerDelay": "1m"}, "needs minMessagesPerTrigger"),
        ({"topic": "a", "minMessagesPerTrigger": "1", "maxTriggerDelay": "soon"}, "'soon' is not a time such as 90s"),
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
