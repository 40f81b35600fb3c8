"""The audit of deliveries finds what is planted in the records of subscribers, and nothing else (D4)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tidings
from tests.spark.conftest import Place
from tests.spark.planting import door, faults, figures, lake_of, rows_of
from tidings.client.record import Recorder, Subscriber
from tidings.errors import InvalidRequest
from tidings.message import Batch, Columns, Share
from tidings.spark.audit import coverage, records
from tidings.spark.audit.report import Subject
from tidings.spark.audit.run import Request, audit

COUNT = 60
AT = 20
LANES = [b"red", b"blue", b"green"]

Handing = list[tuple[int, int]]
"""Offsets in the order in which they are handed out, each with its attempt."""


class Scribe:
    """Writes the records of simulated sessions, with the times that the messages were really published at."""

    def __init__(self, place: Place, folder: Path) -> None:
        self.folder = folder
        self.columns = {topic: [row["published_at"] for row in rows_of(place, topic)] for topic in ("news",)}
        self._clock = 0
        self.boot = "one"

    def _now_us(self) -> int:
        self._clock += 1
        return self._clock

    def session(
        self,
        who: Subscriber,
        handing: Handing,
        epoch: int = 1,
        stands: int | None = 0,
        closed_at: int | None = None,
        returned: int | None = None,
    ) -> None:
        """One session: where it stood, what it handed out one by one, and where it was closed, if it was."""
        recorder = Recorder(self.folder, who.name, self._now_us, lambda: epoch)
        if stands is not None and not who.group:
            recorder.stands(who, "news", stands)
        for offset, attempt in handing:
            times = self.columns["news"]
            when = round(times[offset].timestamp() * 1e6) if 0 <= offset < len(times) else 0
            columns = Columns(1, "tester", [b"x"], [LANES[offset % 3]], published_us=when)
            batch = Share("news", (offset,), columns, attempt) if who.group else Batch("news", offset, columns, attempt)
            recorder.handed(who, batch, 0, 1)
        if returned is not None:
            recorder.returned(who, "news", [returned] if who.group else range(returned, handing[-1][0] + 1))
        if closed_at is not None:
            recorder.stands(who, "news", closed_at)
            recorder.close()


def all_of(*attempts: int) -> Handing:
    return [(offset, 1) for offset in range(*(attempts or (COUNT,)))]


def dropped(handing: Handing) -> None:
    del handing[AT]


def doubled(handing: Handing) -> None:
    handing.insert(AT, handing[AT])


def swapped(handing: Handing) -> None:
    """20 and 23 are of one lane."""
    handing[AT], handing[AT + 3] = handing[AT + 3], handing[AT]


def doubled_late(handing: Handing) -> None:
    handing.append(handing[AT])


def unknown(handing: Handing) -> None:
    handing.append((5_000, 1))


def lost_tail(handing: Handing) -> None:
    del handing[-5:]


def cancelled_out(handing: Handing) -> None:
    """Neither the count nor the sum of the offsets changes."""
    handing[AT], handing[AT + 3] = handing[AT + 1], handing[AT + 2]


EXCLUSIVE: dict[Callable[[Handing], None], tuple[dict[str, int], list[tuple[str, int]]]] = {
    dropped: ({"lost": 1}, [("lost", AT)]),
    doubled: ({"doubled": 1}, [("doubled", AT)]),
    doubled_late: ({"doubled": 1}, [("doubled", AT)]),
    swapped: ({"reordered": 2}, [("reordered", AT + 1), ("reordered", AT + 3)]),
    unknown: ({"unknown": 1}, [("unknown", 5_000)]),
    lost_tail: ({"lost": 5}, [("lost", offset) for offset in range(COUNT - 5, COUNT)]),
    cancelled_out: (
        {"lost": 2, "doubled": 2},
        [("lost", AT), ("doubled", AT + 1), ("doubled", AT + 2), ("lost", AT + 3)],
    ),
}


@pytest.fixture
def scribe(place: Place, tmp_path: Path) -> Scribe:
    place.bus.put_many("news", [b"%d" % number for number in range(COUNT)])
    return Scribe(place, tmp_path / "deliveries")


def found(place: Place, folder: Path, **options: object) -> dict[str, Subject]:
    request = Request(door(place), deliveries=(folder,), **options)  # type: ignore[arg-type]
    return {subject.name: subject for subject in audit(place.spark, request).subjects}


def test_a_fault_in_an_exclusive_subscription_is_found_and_named(place: Place, scribe: Scribe) -> None:
    """D4: each fault is planted in the records of a client of its own."""
    scribe.session(Subscriber("right"), all_of(), closed_at=COUNT)
    for plant in EXCLUSIVE:
        handing = all_of()
        plant(handing)
        scribe.session(Subscriber(plant.__name__), handing, closed_at=COUNT)
    subjects = found(place, scribe.folder)
    assert (subjects["right"].clean, subjects["right"].checked) == (True, COUNT)
    for plant, (counts, named) in EXCLUSIVE.items():
        subject = subjects[plant.__name__]
        assert figures(subject) == counts, plant
        assert faults(subject) == named, plant


def test_a_fault_in_a_group_is_found_and_named(place: Place, scribe: Scribe) -> None:
    """D4: the lanes of two members are shared, and order counts within a lane only."""
    late = Subscriber("any order of lanes", group=True)
    scribe.session(late, [(offset, 1) for lane in range(3) for offset in range(lane, COUNT, 3)])
    for plant in (dropped, doubled, swapped, unknown, cancelled_out):
        handing = all_of()
        plant(handing)
        who = Subscriber(plant.__name__, group=True)
        scribe.session(who, [each for each in handing if each[0] % 3], epoch=1)
        scribe.session(who, [each for each in handing if not each[0] % 3], epoch=7)
    subjects = found(place, scribe.folder)
    assert subjects["group any order of lanes"].clean
    assert figures(subjects["group dropped"]) == {"lost": 1}
    assert faults(subjects["group doubled"]) == [("doubled", AT)]
    assert faults(subjects["group swapped"]) == [("reordered", AT + 3)]
    assert faults(subjects["group unknown"]) == [("unknown", 5_000)]
    assert figures(subjects["group cancelled_out"]) == {"lost": 2, "doubled": 2}


def test_what_is_no_fault(place: Place, scribe: Scribe) -> None:
    """D4: repetitions that are marked, messages that came back, subscribers that are behind or began late."""
    crashed = Subscriber("crashed")
    scribe.session(crashed, all_of(40))
    scribe.session(crashed, [(offset, 2) for offset in range(30, 40)] + all_of(40, COUNT), 2, 30, COUNT)
    scribe.session(Subscriber("gave back"), all_of(40), returned=35)
    scribe.session(Subscriber("gave back"), all_of(35, COUNT), 2, stands=35, closed_at=COUNT)
    scribe.session(Subscriber("behind"), all_of(30), closed_at=30)
    scribe.session(Subscriber("gave up"), all_of(30), closed_at=25, returned=25)
    scribe.session(Subscriber("began late"), all_of(50, COUNT), stands=50, closed_at=COUNT)
    workers = Subscriber("workers", group=True)
    scribe.session(workers, all_of(30), returned=29)
    scribe.session(workers, [(28, 2), *all_of(29, COUNT)])
    subjects = found(place, scribe.folder)
    for subject in subjects.values():
        assert subject.clean, subject
    assert {name: subject.repeated for name, subject in subjects.items() if subject.repeated} == {
        "crashed": 10,
        "group workers": 1,
    }
    assert {name: (subject.checked, subject.waiting) for name, subject in subjects.items()} == {
        "crashed": (COUNT, 0),
        "gave back": (COUNT, 0),
        "behind": (30, 30),
        "gave up": (25, 35),
        "began late": (10, 0),
        "group workers": (COUNT, 0),
    }
    complete = found(place, scribe.folder, complete=True, start=0)
    assert figures(complete["behind"]) == {"lost": 30}
    assert figures(complete["gave up"]) == {"lost": 35}
    assert figures(complete["began late"]) == {"lost": 50}
    assert complete["crashed"].clean


def test_only_a_marked_repetition_is_excused(place: Place, scribe: Scribe) -> None:
    """D4: a second session may not give out again, as if for the first time, what the first one had."""
    alice = Subscriber("alice")
    scribe.session(alice, all_of(40))
    scribe.session(alice, all_of(38, COUNT), epoch=2, stands=38, closed_at=COUNT)
    twice = Subscriber("twice in one session")
    scribe.session(twice, [*all_of(), (AT, 2), (AT, 2)], closed_at=COUNT)
    late = Subscriber("late")
    scribe.session(late, [each for each in all_of(40) if each[0] != AT], stands=0)
    scribe.session(late, [(AT, 1), *all_of(40, COUNT)], epoch=2, stands=AT, closed_at=COUNT)
    subjects = found(place, scribe.folder)
    assert faults(subjects["alice"]) == [("doubled", 38), ("doubled", 39)]
    assert (figures(subjects["twice in one session"]), subjects["twice in one session"].repeated) == ({"doubled": 1}, 1)
    assert faults(subjects["late"]) == [("reordered", AT + 1)], "what comes a session late is out of order"


def test_a_power_cut_leaves_a_doubt_and_a_crash_does_not(
    place: Place, scribe: Scribe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D4: records that a restart of the machine may have cut short do not prove that a message was lost."""
    for name, boots in (("killed", ("one", "one")), ("cut off", ("one", "two"))):
        for epoch, (number, handing) in enumerate(zip(boots, (all_of(30), all_of(35, COUNT)), strict=True)):
            monkeypatch.setattr("tidings.client.record.boot_id", lambda number=number: number)
            scribe.session(Subscriber(name), handing, epoch, 0 if epoch == 0 else 35, None if epoch == 0 else COUNT)
    subjects = found(place, scribe.folder)
    assert (figures(subjects["killed"]), subjects["killed"].unsure) == ({"lost": 5}, 0)
    assert (figures(subjects["cut off"]), subjects["cut off"].unsure) == ({}, 5)
    assert not subjects["cut off"].clean, "it is not proven either"


def test_real_subscribers_against_the_lake(place: Place, tmp_path: Path) -> None:
    """D4: what subscribers of all kinds have recorded agrees with the journal, and with the lake without a broker."""
    folder = tmp_path / "deliveries"
    values = [b"%d" % number for number in range(2_000)]
    with (
        tidings.connect(place.broker.address, "alice", record=folder) as alice,
        tidings.connect(place.broker.address, "ada", record=folder) as ada,
    ):
        news = alice.subscribe("news")
        jobs = ada.subscribe("news", group="workers")
        place.bus.put_many("news", values, [b"k%d" % (number % 50) for number in range(2_000)])
        for number, _ in enumerate(news.messages(timeout=0)):
            if number == 700:
                break
        assert alice.get("news") is not None
        assert sum(len(batch) for batch in news.batches(timeout=0)) == 1_299
        for number, _ in enumerate(jobs.messages(timeout=0)):
            if number == 900:
                break
        assert sum(len(share) for share in jobs.batches(timeout=0)) == 1_100
    for request in (
        Request(door(place), deliveries=(folder,), complete=True),
        Request(lake=lake_of(rows_of(place, "news"), tmp_path / "lake"), deliveries=(folder,), complete=True),
    ):
        report = audit(place.spark, request)
        assert [(each.name, each.checked) for each in report.subjects] == [("alice", 2_000), ("group workers", 2_000)]
        assert report.clean, report
    with pytest.raises(InvalidRequest, match="no delivery records"):
        audit(place.spark, Request(door(place), deliveries=(tmp_path / "data0",)))


def test_blocks_are_looked_into_one_by_one(place: Place, scribe: Scribe, monkeypatch: pytest.MonkeyPatch) -> None:
    """D4: with blocks of eight offsets, faults at their edges and across them are found as well."""
    for module in ("blocks", "deliveries"):
        monkeypatch.setattr(f"tidings.spark.audit.{module}.BLOCK_OFFSETS", 8)
    monkeypatch.setattr(records, "ROWS_WANTED", 7)
    across = all_of()
    across[23], across[24] = across[24], across[23]
    scribe.session(Subscriber("across"), across, closed_at=COUNT)
    edge = all_of()
    edge[16], edge[39] = edge[15], edge[40]
    scribe.session(Subscriber("edge"), edge, closed_at=COUNT)
    subjects = found(place, scribe.folder)
    assert faults(subjects["across"]) == [("reordered", 24)]
    assert figures(subjects["edge"]) == {"lost": 2, "doubled": 2}
    assert [offset for _, offset in faults(subjects["edge"])] == [15, 16, 39, 40]


@pytest.mark.soak
def test_millions_of_deliveries(place: Place, tmp_path: Path) -> None:
    """D4: one dropped and one doubled among two million deliveries, to a client and to a group of two."""
    count = 2_000_000
    with tidings.connect(place.broker.address, "writer") as writer:
        writer.put_many("news", [b"x"] * count)
    folder = tmp_path / "deliveries"
    alice = Recorder(folder, "alice", lambda: 1, lambda: 1)
    members = [Recorder(folder, name, lambda: 1, lambda: 1) for name in ("ada", "bob")]
    for number, batch in enumerate(place.bus.read("news")):
        alice.handed(Subscriber("alice"), batch, 0, len(batch))
        offsets = list(range(batch.first_offset, batch.next_offset))
        if batch.first_offset <= count // 2 < batch.next_offset:
            offsets[count // 2 - batch.first_offset] -= 1
        share = Share("news", offsets, batch.columns)
        members[number % 2].handed(Subscriber("workers", group=True), share, 0, len(share))
    subjects = found(place, folder)
    assert subjects["alice"].clean, subjects["alice"]
    assert subjects["alice"].checked == count
    workers = subjects["group workers"]
    assert (workers.lost, workers.doubled) == (1, 1)
    assert [offset for _, offset in faults(workers)] == [count // 2 - 1, count // 2]


def test_the_order_of_sessions_and_files() -> None:
    about = {"client": "a", "subscription": "a", "group": False, "topic": "t", "boot": "x", "ended": True}
    about |= {"stands_low": None, "stands_high": None, "rising": True, "plain": True}
    rows = [
        about | {"session": "s2", "number": 0, "epoch": 9, "rows": 5, "low": 10, "high": 14, "at": 15},
        about | {"session": "s1", "number": 1, "epoch": 3, "rows": 5, "low": 5, "high": 9, "at": 10},
        about | {"session": "s1", "number": 0, "epoch": 3, "rows": 5, "low": 0, "high": 4, "at": 5},
    ]
    [covered] = coverage.coverage(rows)
    assert (covered.start, covered.end, covered.rows, covered.in_order) == (0, 15, 15, True)
    rows[1]["low"] = 4
    [covered] = coverage.coverage(rows)
    assert not covered.in_order
    assert coverage.coverage(rows, ["other"]) == []
