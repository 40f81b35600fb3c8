"""The audit finds every fault that is planted, and none where there is none (D4)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.conftest import Place
from tests.spark.planting import Row, door, faults, figures, lake_of, rows_of, subjects, table_of
from tidings.errors import InvalidRequest, NoSuchTopic
from tidings.spark.audit.run import Request, audit

COUNT = 200
AT = 70
"""Where a fault is planted."""


def fill(place: Place, *topics: str) -> None:
    for topic in topics or ("news",):
        keys = [b"k%d" % (number % 5) for number in range(COUNT)]
        place.bus.put_many(topic, [b"%d" % number for number in range(COUNT)], keys)
    place.bus.put("sport", "x", headers={"b": b"2", "a": b"1"}, id="one")


def dropped(rows: list[Row]) -> None:
    del rows[AT]


def doubled(rows: list[Row]) -> None:
    rows.append(dict(rows[AT]))


def swapped(rows: list[Row]) -> None:
    """Two rows have each other's place."""
    rows[AT]["offset"], rows[AT + 1]["offset"] = rows[AT + 1]["offset"], rows[AT]["offset"]


def changed(rows: list[Row]) -> None:
    rows[AT]["value"] += b"!"


def without_its_key(rows: list[Row]) -> None:
    rows[AT]["key"] = None


def unknown(rows: list[Row]) -> None:
    rows.append({**rows[AT], "offset": 5_000})


def without_a_place(rows: list[Row]) -> None:
    rows.append({**rows[AT], "offset": None})


def cancelled_out(rows: list[Row]) -> None:
    """The count and the sum of the offsets stay what they were: 70 and 73 are gone, 71 and 72 are there twice."""
    del rows[AT + 3], rows[AT]
    rows += [dict(rows[AT]), dict(rows[AT + 1])]


PLANTED: dict[Callable[[list[Row]], None], tuple[dict[str, int], list[tuple[str, int]]]] = {
    dropped: ({"lost": 1}, [("lost", AT)]),
    doubled: ({"doubled": 1}, [("doubled", AT)]),
    swapped: ({"changed": 2}, [("changed", AT), ("changed", AT + 1)]),
    changed: ({"changed": 1}, [("changed", AT)]),
    without_its_key: ({"changed": 1}, [("changed", AT)]),
    unknown: ({"unknown": 1}, [("unknown", 5_000)]),
    without_a_place: ({"unknown": 1}, [("unknown", -1)]),
    cancelled_out: (
        {"lost": 2, "doubled": 2},
        [("lost", AT), ("doubled", AT + 1), ("doubled", AT + 2), ("lost", AT + 3)],
    ),
}
INVISIBLE_ALONE = (swapped, changed, without_its_key)
"""What only the journal can tell."""


def test_a_fault_in_the_lake_is_found_and_named(place: Place, tmp_path: Path) -> None:
    """D4: each fault is planted in a topic of its own, and found there with the first offending row."""
    fill(place, *(plant.__name__ for plant in PLANTED))
    rows = rows_of(place, "sport")
    for plant in PLANTED:
        planted = rows_of(place, plant.__name__)
        plant(planted)
        rows += planted
    lake = lake_of(rows, tmp_path / "lake")
    found = subjects(place, Request(door(place), lake))
    assert found.pop("sport").clean
    for plant, (counts, named) in PLANTED.items():
        subject = found.pop(plant.__name__)
        assert faults(subject) == named, plant
        assert figures(subject) == counts, plant
    assert not found
    alone = subjects(place, Request(lake=lake))
    for plant, (counts, named) in PLANTED.items():
        if plant in INVISIBLE_ALONE:
            assert alone[plant.__name__].clean, plant
        elif plant is unknown:
            lost = {"lost": 5_000 - COUNT}
            assert figures(alone["unknown"]) == lost, "a lake alone takes the highest offset for one that was published"
        else:
            assert (figures(alone[plant.__name__]), faults(alone[plant.__name__])) == (counts, named), plant


def test_a_clean_lake_and_one_that_is_behind(place: Place, tmp_path: Path) -> None:
    """D4: what has not landed yet is no loss, unless all should have landed."""
    fill(place)
    rows = rows_of(place, "news", "sport")
    lake = lake_of(rows, tmp_path / "lake")
    report = audit(place.spark, Request(door(place), lake))
    assert report.clean
    assert [(each.topic, each.checked, each.waiting) for each in report.subjects] == [("news", 200, 0), ("sport", 1, 0)]
    place.bus.put_many("news", ["more", "and more"])
    place.bus.put("late", "x")
    found = subjects(place, Request(door(place), lake))
    assert (found["news"].clean, found["news"].checked, found["news"].waiting) == (True, 200, 2)
    assert (found["late"].clean, found["late"].checked, found["late"].waiting) == (True, 0, 1)
    found = subjects(place, Request(door(place), lake, complete=True))
    assert (found["news"].lost, faults(found["news"])) == (2, [("lost", 200), ("lost", 201)])
    assert (found["late"].lost, found["late"].waiting) == (1, 0)
    assert list(subjects(place, Request(door(place), lake, topics=("s*",), complete=True))) == ["sport"]


def test_rows_that_the_journal_no_longer_has(build: Callable[..., Place], tmp_path: Path) -> None:
    """D4: what retention has removed is compared with itself, the rest with the journal."""
    place = build(retain_bytes=1_000, segment_records_max=20)
    for number in range(200):
        place.bus.put("news", str(number))
    rows = rows_of(place, "news")
    deadline = time.monotonic() + 60
    while place.bus.topic("news").first_offset == 0:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    low = place.bus.topic("news").first_offset
    found = subjects(place, Request(door(place), lake_of(rows, tmp_path / "lake")))
    assert (found["news"].clean, found["news"].checked) == (True, 200)
    assert 2 < low < 199
    rows.append(dict(rows[1]))
    del rows[2]
    rows[-2]["value"] = b"?"
    found = subjects(place, Request(door(place), lake_of(rows, tmp_path / "planted")))
    assert sorted(faults(found["news"])) == [("changed", 199), ("doubled", 1), ("lost", 2)]


def test_only_live_files_of_a_partitioned_table_count(place: Place, tmp_path: Path) -> None:
    """D4: a file that a crashed writer left behind is not part of the table; topics may be folders of any name."""
    place.bus.put_many("a b/é%[", [b"%d" % number for number in range(20)])
    lake = lake_of(rows_of(place, "a b/é%["), tmp_path / "lake", files=2, partition_by=["topic"])
    [orphan, *_] = sorted((lake / "bronze").rglob("*.parquet"))
    orphan.with_name("part-orphan.parquet").write_bytes(orphan.read_bytes())
    orphan.with_name("part-torn.parquet").write_bytes(orphan.read_bytes()[:100])
    [found] = audit(place.spark, Request(door(place), lake)).subjects
    assert (found.topic, found.checked, found.clean) == ("a b/é%[", 20, True)
    table_of(lake).delete("offset = 7")
    [found] = audit(place.spark, Request(door(place), lake)).subjects
    assert faults(found) == [("lost", 7)]


COPIES: dict[str, tuple[Callable[[list[bytes]], object], tuple[int, int, int], list[tuple[str, str, int]]]] = {
    "right": (lambda rows: rows.reverse(), (0, 0, 0), []),
    "dropped": (lambda rows: rows.pop(AT), (1, 0, 0), [("lost", "source", AT)]),
    "doubled": (lambda rows: rows.append(rows[AT]), (0, 1, 0), [("doubled", "source", AT)]),
    "unknown": (lambda rows: rows.append(b"never"), (0, 0, 1), [("unknown", "unknown", COUNT)]),
    "cancelled out": (
        lambda rows: rows.__setitem__(AT, rows[AT + 1]),
        (1, 1, 0),
        [("lost", "source", AT), ("doubled", "source", AT + 1)],
    ),
}


def test_a_fault_in_a_copy_is_found_and_named(place: Place) -> None:
    """D4: one that is lost and another that is doubled keep the count, and are found all the same."""
    rows = [b"%d" % number for number in range(COUNT)]
    place.bus.put_many("source", rows)
    for target, (plant, counts, named) in COPIES.items():
        planted = list(rows)
        plant(planted)
        place.bus.put_many(target, planted)
        [found] = audit(place.spark, Request(door(place), topics=("source",), copy=target)).subjects
        assert (found.checked, found.name, found.topic) == (COUNT, f"copy in {target}", "source")
        assert (found.lost, found.doubled, found.unknown) == counts, target
        assert [(fault.kind, fault.topic, fault.offset) for fault in found.faults] == named, target


def test_a_copy_may_have_equal_messages_and_another_order(place: Place) -> None:
    """D4: what was published twice is there twice; by its id a message is the same whatever became of its value."""
    rows = [(b"%d" % (number % 10), f"id-{number}") for number in range(50)]
    for value, name in rows:
        place.bus.put("source", value, headers={"a": b"1"}, id=name)
    for value, name in reversed(rows):
        place.bus.put("target", value, headers={"a": b"2"}, id=name)

    def wrong(by: str) -> int:
        request = Request(door(place), topics=("source",), copy="target", by=by)  # type: ignore[arg-type]
        return audit(place.spark, request).subjects[0].wrong

    assert wrong("value") == wrong("id") == 0
    assert wrong("all") == 100, "the headers are others: 50 are lost and 50 unknown"
    place.bus.put("target", "other", id="id-x")
    assert wrong("id") == 1


def test_what_cannot_be_audited_says_so(place: Place, tmp_path: Path) -> None:
    place.bus.put("news", "x")
    with pytest.raises(NoSuchTopic, match="There is no topic 'art' on the bus"):
        audit(place.spark, Request(door(place), topics=("news",), copy="art"))
    with pytest.raises(InvalidRequest, match=r"There is no table .*bronze"):
        audit(place.spark, Request(lake=tmp_path))
    with pytest.raises(InvalidRequest, match="compared with one topic"):
        audit(place.spark, Request(door(place), topics=("news", "art"), copy="b"))
