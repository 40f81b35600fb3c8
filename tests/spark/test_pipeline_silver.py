"""Silver and gold over rows of bronze whose times and ids are chosen (D2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.lakes import append_bronze, at, message, rows_of, run_once
from tidings.errors import InvalidRequest
from tidings.pipeline.lake import Lake
from tidings.pipeline.plan import Plan
from tidings.pipeline.run import prepare
from tidings.pipeline.status import status

PLAN = Plan("tcp://127.0.0.1:1", watermark_s=60.0)
UPPER = ("silver", "gold")


def make_lake(spark: Any, folder: Path) -> Lake:
    """In the second round come a duplicate of the first and a clock that was set back, in the third late messages."""
    lake = Lake(folder)
    prepare(lake, PLAN, 60)
    first = [
        message(0, b"I have 2 cats", 0, 0.25, id="a", key=b"k", headers={"h": b"1"}),
        message(1, b"two dogs", 1, 1.75, id="b"),
        message(2, b"again", 2, id="a"),
        message(3, b"\xff\xfe", 3),
        message(4, b"\xff", 3, id="c"),
        message(5, "Ça va, 3 fois".encode(), 3, id="c"),
        message(6, b"Cats, cats", 4),
        message(7, b"back", 2.5),
        message(0, b"other topic, same id", 5, id="a", topic="u"),
        message(8, b"from the future", 1e9, 6, publisher="ahead"),
    ]
    append_bronze(spark, lake, 0, first)
    run_once(spark, lake, PLAN, UPPER)
    second = [
        message(9, b"a third time", 500, id="a"),
        message(10, b"much later", 501),
        message(11, b"still back", 499),
    ]
    append_bronze(spark, lake, 1, second)
    run_once(spark, lake, PLAN, UPPER)
    append_bronze(spark, lake, 2, [message(12, b"too late", 30), message(13, b"late but in time", 470)])
    run_once(spark, lake, PLAN, UPPER)
    return lake


def every_row_is_in_silver_or_rejected(lake: Lake) -> None:
    def places(table: str) -> list[tuple[str, int]]:
        return [(row["topic"], row["offset"]) for row in rows_of(lake, table)]

    assert sorted(places("silver") + places("rejected")) == places("bronze")


def what_is_rejected_and_why(lake: Lake) -> None:
    """The first text of an id is taken; one that is no text does not count."""
    reasons = {(row["topic"], row["offset"]): row["reason"] for row in rows_of(lake, "rejected")}
    assert reasons == {
        ("t", 2): "duplicate id",
        ("t", 3): "not UTF-8",
        ("t", 4): "not UTF-8",
        ("t", 9): "duplicate id",
    }
    assert next(row for row in rows_of(lake, "rejected") if row["offset"] == 3)["value"] == b"\xff\xfe"


def texts_words_and_measures(lake: Lake) -> None:
    row = rows_of(lake, "silver")[0]
    assert (row["text"], row["words"]) == ("I have 2 cats", "I have two cats")
    assert (row["key"], row["headers"], row["id"]) == (b"k", [("h", b"1")], "a")
    assert (row["latency_ms"], row["size_bytes"]) == (250.0, 13)
    assert row["event_at"] == row["published_at"] == at(0)
    texts = {row["offset"]: row["words"] for row in rows_of(lake, "silver") if row["topic"] == "t"}
    assert texts[5] == "Ça va, three fois"
    assert texts[6] == "Cats, cats"


def the_order_of_a_publisher(lake: Lake) -> None:
    """A time before an earlier one of the same publisher and topic, in the same batch or an earlier one."""
    backwards = [(row["topic"], row["offset"]) for row in rows_of(lake, "silver") if not row["in_order"]]
    assert backwards == [("t", 7), ("t", 11), ("t", 12), ("t", 13)]
    known = {(row["topic"], row["publisher"]): row for row in rows_of(lake, "publishers")}
    assert set(known) == {("t", "p"), ("u", "p"), ("t", "ahead")}
    mine = known["t", "p"]
    assert (mine["messages"], mine["backwards"], mine["last_offset"]) == (13, 4, 13)
    assert mine["latest_published_at"] == at(501)


def a_clock_that_is_ahead_makes_nobody_late(lake: Lake) -> None:
    row = next(row for row in rows_of(lake, "silver") if row["publisher"] == "ahead")
    assert row["event_at"] == row["stored_at"] == at(6)
    assert row["latency_ms"] == 0.0


def gold_counts_what_came_in_time(lake: Lake) -> None:
    """The watermark is 60 s behind the latest event: 30 s is late, 470 s is not."""
    gold = {(row["topic"], row["window_start"]): row for row in rows_of(lake, "gold")}
    assert set(gold) == {("t", at(0)), ("u", at(0)), ("t", at(420)), ("t", at(480))}
    counts = {key: row["messages"] for key, row in gold.items()}
    assert counts == {("t", at(0)): 6, ("u", at(0)): 1, ("t", at(420)): 1, ("t", at(480)): 2}
    first = gold["t", at(0)]
    assert (first["window_end"], first["rate"], first["publishers"]) == (at(60), 0.1, 2)
    sizes = [13, 8, 14, 10, 4, 15]
    assert (first["size_bytes"], first["size_max"]) == (sum(sizes), max(sizes))
    assert first["size_mean"] == pytest.approx(sum(sizes) / 6)
    assert (first["latency_p50_ms"], first["latency_p99_ms"]) == (0.0, 750.0)
    assert first["backwards"] == 1
    assert first["top_words"][0] == {"word": "cats", "count": 3}
    assert len(first["top_words"]) == 10


def status_counts_the_late(lake: Lake) -> None:
    found = status(lake)
    assert found.late == 1
    assert found.rejected == {"duplicate id": 2, "not UTF-8": 2}
    assert found.backwards == 4
    assert [query.waiting for query in found.queries] == [None, 0, 0]


def a_lost_checkpoint_is_noticed(lake: Lake) -> None:
    """Without it silver would be made a second time; it is refused, with what to do."""
    checkpoint = lake.checkpoint("silver")
    not_leader = checkpoint.rename(checkpoint.with_name("elsewhere"))
    try:
        with pytest.raises(InvalidRequest, match=r"The checkpoint of silver is missing from .* delete the folder"):
            prepare(lake, PLAN, None)
    finally:
        not_leader.rename(checkpoint)


def windows_stay_as_they_are(lake: Lake) -> None:
    with pytest.raises(InvalidRequest, match="windows of this lake last 60 s, not 10 s"):
        prepare(lake, PLAN, 10)


CHECKS = (
    every_row_is_in_silver_or_rejected,
    what_is_rejected_and_why,
    texts_words_and_measures,
    the_order_of_a_publisher,
    a_clock_that_is_ahead_makes_nobody_late,
    gold_counts_what_came_in_time,
    status_counts_the_late,
    a_lost_checkpoint_is_noticed,
    windows_stay_as_they_are,
)


@pytest.mark.timeout(1200)
def test_silver_and_gold(spark: Any, tmp_path: Path) -> None:
    """One lake for all checks: what takes time is making it."""
    lake = make_lake(spark, tmp_path / "a lake [1]")
    for check in CHECKS:
        check(lake)
