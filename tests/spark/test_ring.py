"""The sink on a ring: topics with different owners, and queries whose homes lie anywhere (D3, P8)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.ring_house import RingHouse
from tests.integration.test_ring_contract import topic_of
from tests.spark.conftest import Place
from tests.spark.test_stream import drain, numbered


@pytest.fixture
def house(tmp_path: Path) -> Iterator[RingHouse]:
    """Two groups of one node."""
    house = RingHouse(tmp_path / "ring")
    try:
        yield house
    finally:
        house.close()


@pytest.fixture
def place(spark: Any, house: RingHouse) -> Iterator[Place]:
    place = Place(spark, house.broker)  # type: ignore[arg-type]
    try:
        yield place
    finally:
        place.bus.close()


def test_a_stream_from_one_owner_to_another(place: Place, house: RingHouse, tmp_path: Path) -> None:
    """Two batches, the second of which is repeated after a crash of the driver."""
    view = house.trial.view()
    source, sink = topic_of(view, 0, "in{}"), topic_of(view, 1, "out{}")
    place.bus.put_many(source, numbered(0, 100))
    drain(place, source, sink, tmp_path / "c")
    place.bus.put_many(source, numbered(100, 150))
    drain(place, source, sink, tmp_path / "c")
    before = place.values(sink)
    assert sorted(before, key=int) == numbered(0, 150)
    for commit in (tmp_path / "c" / "commits").glob("*1*"):
        commit.unlink()
    place.bus.put_many(source, numbered(150, 160))
    drain(place, source, sink, tmp_path / "c")
    after = place.values(sink)
    assert after[: len(before)] == before
    assert sorted(after, key=int) == numbered(0, 160)


def test_one_batch_write_to_topics_of_both_owners(place: Place, house: RingHouse) -> None:
    """All of it or nothing, and once under one number."""
    view = house.trial.view()
    topics = [topic_of(view, 0), topic_of(view, 1)]
    rows = [(topics[number % 2], f"{number}") for number in range(200)]
    frame = place.spark.createDataFrame(rows, "topic string, value string")
    for _ in range(2):
        place.write(frame, query="both", batch=0)
    house.restart()
    place.write(frame, query="both", batch=0)
    for each, topic in enumerate(topics):
        assert sorted(map(int, place.values(topic))) == list(range(each, 200, 2))
