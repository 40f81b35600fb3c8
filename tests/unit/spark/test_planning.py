"""Ranges, shares and limits."""

from __future__ import annotations

import logging
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.errors import NoSuchTopic
from tidings.message import TopicInfo
from tidings.spark.options import read_options
from tidings.spark.planning import DataLoss, Range, find_topics, kept, limit, split, split_as_asked

STRICT = read_options({"topic": "a"}, streaming=False)
LENIENT = read_options({"topic": "a", "failOnDataLoss": "false"}, streaming=False)

RANGES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 40)), max_size=6)


@given(RANGES, st.integers(1, 20))
def test_every_offset_goes_to_one_task(sizes: list[tuple[int, int]], tasks: int) -> None:
    ranges = [Range(f"t{number}", start, start + count) for number, (start, count) in enumerate(sizes)]
    shares = split(ranges, tasks)
    total = sum(each.count for each in ranges)
    assert len(shares) == min(tasks, total)
    wanted = [(each.topic, offset) for each in ranges for offset in range(each.start, each.end)]
    found = [(each.topic, offset) for share in shares for each in share for offset in range(each.start, each.end)]
    assert found == wanted
    counts = [sum(each.count for each in share) for share in shares]
    assert not counts or max(counts) - min(counts) <= 1


def shares(count: int, **options: str) -> list[int]:
    found = split_as_asked([Range("a", 0, count)], read_options({"topic": "a"} | options, streaming=False))
    return [sum(each.count for each in share) for share in found]


def test_small_ranges_are_not_cut_and_large_ones_are() -> None:
    cores = os.cpu_count() or 1
    assert len(shares(100)) == 1
    assert len(shares(1_000_000)) == min(cores, 100)
    tasks = len(shares(50_000_001))
    assert tasks > 50 and tasks % cores == 0
    assert len(shares(10**12)) == 10_000


def test_as_many_tasks_as_were_asked_for_and_none_larger_than_that() -> None:
    assert shares(100, tasks="4") == shares(100, minPartitions="4") == [25] * 4
    assert shares(100, maxMessagesPerTask="40") == shares(100, maxRecordsPerPartition="40") == [33, 33, 34]
    assert len(shares(100, tasks="4", maxMessagesPerTask="40")) == 4


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 1000), min_size=1), st.integers(1, 2000))
def test_a_limit_is_shared_out_exactly(waiting: dict[str, int], most: int) -> None:
    start = dict.fromkeys(waiting, 10)
    ends = limit(start, {name: 10 + count for name, count in waiting.items()}, most)
    assert sum(ends.values()) - sum(start.values()) == min(most, sum(waiting.values()))
    assert all(10 <= ends[name] <= 10 + count for name, count in waiting.items())


def test_a_limit_lets_nothing_stay_ahead_of_its_topic() -> None:
    assert limit({"a": 50, "b": 0}, {"a": 20, "b": 100}, 10) == {"a": 20, "b": 10}


@pytest.mark.parametrize(
    ("wanted", "rest", "lost"),
    [
        (Range("a", 5, 8), Range("a", 5, 8), 0),
        (Range("a", 3, 8), Range("a", 5, 8), 2),
        (Range("a", 0, 4), Range("a", 5, 5), 4),
        (Range("a", 8, 12), Range("a", 8, 10), 2),
        (Range("a", 12, 15), Range("a", 10, 10), 3),
        (Range("a", 0, 20), Range("a", 5, 10), 15),
        (Range("a", 2, 2), Range("a", 2, 2), 0),
    ],
)
def test_what_is_not_there_is_an_error_or_counted(
    wanted: Range, rest: Range, lost: int, caplog: pytest.LogCaptureFixture
) -> None:
    info = TopicInfo("a", 5, 10, 0)
    with caplog.at_level(logging.WARNING):
        assert kept(wanted, info, LENIENT) == rest
    assert bool(caplog.records) == bool(lost)
    if lost:
        assert f"{lost} messages of 'a'" in caplog.text
        with pytest.raises(DataLoss, match=f"{lost} messages of 'a'.*failOnDataLoss=false"):
            kept(wanted, info, STRICT)
    else:
        assert kept(wanted, info, STRICT) == wanted


class Shelf:
    """A bus on which there is one topic."""

    def topics(self) -> list[TopicInfo]:
        return [TopicInfo("a", 0, 3, 0)]


def test_topics_that_are_not_there_are_an_error_or_counted(caplog: pytest.LogCaptureFixture) -> None:
    names = {"topic": "a, b, c"}
    bus: Any = Shelf()
    with pytest.raises(NoSuchTopic, match="There is no topic 'b': put to it"):
        find_topics(bus, read_options(names, streaming=False))
    lenient = read_options(names | {"failOnDataLoss": "false"}, streaming=False)
    with caplog.at_level(logging.WARNING):
        assert list(find_topics(bus, lenient)) == ["a"]
    assert "2 topics do not exist ('b', 'c') and are skipped (failOnDataLoss=false)." in caplog.text
    caplog.clear()
    assert list(find_topics(bus, lenient, known=["b", "c"])) == ["a"]
    assert not caplog.records
