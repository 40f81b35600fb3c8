"""Bits that the disk has flipped: nobody gets an altered message, everybody is told, and all else goes on (Z11)."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tidings
from tests.integration.conftest import EmbeddedHouse, House, ServedHouse, StoredHouse
from tests.integration.folder_faults import contents
from tests.integration.socket_programs import wait_until
from tidings.cli import main
from tidings.files.exporting import export
from tidings.storage.texts import Texts

COUNT = 60
SMALL = {"segment_bytes_max": 20_000, "recent_bytes_max": 1}
"""Several sealed segments, and nothing in memory."""


def value(number: int) -> bytes:
    return b"message %03d " % number * 100


def flip(house: House, number: int, bit: int = 0, within: int = 0) -> Path:
    """Flips a bit of a message where it is stored; the file that has it."""
    for path in sorted(house.data.glob("*.journal")):
        position = path.read_bytes().find(value(number))
        if position >= 0:
            with path.open("r+b") as file:
                file.seek(position + within)
                byte = file.read(1)[0]
                file.seek(position + within)
                file.write(bytes([byte ^ 1 << bit]))
            return path
    raise AssertionError(f"message {number} is not stored")


def filled(build: Callable[..., House]) -> House:
    house = build(**SMALL)
    bus = house.connect("ann")
    bus.subscribe("other", start="earliest")
    for number in range(COUNT):
        bus.put("news", value(number))
        bus.put("other", b"other %d" % number)
    return house


def read(bus: tidings.Bus, start: int, end: int | None = None) -> Iterator[bytes]:
    for batch in bus.read("news", start, end):
        yield from batch.values


def taken(bus: tidings.Bus, until: int) -> list[bytes]:
    """Gets messages up to a number of them; fewer only if an error comes, which is raised."""
    found = []
    while len(found) < until:
        message = bus.get("news", timeout=10)
        assert message is not None
        found.append(message.value)
    return found


def test_a_reader_of_a_range_gets_all_but_the_damaged_batch(build: Callable[..., House]) -> None:
    house = filled(build)
    path = flip(house, 7)
    bus = house.connect()
    got: list[bytes] = []
    with pytest.raises(tidings.StorageDamaged, match=rf"{path.name} is damaged at position \d+.*from offset 8"):
        got.extend(read(bus, 0))
    assert got == [value(number) for number in range(7)]
    with pytest.raises(tidings.StorageDamaged):
        list(read(bus, 7, 8))
    assert list(read(bus, 8)) == [value(number) for number in range(8, COUNT)]
    assert bus.status()["damaged"] == 1
    if isinstance(house, ServedHouse):
        assert house.broker.stop() == 0
        told = [line for line in house.broker.log if "is damaged at position" in line]
        assert len(told) == 1
        assert path.name in told[0]


def test_who_reads_the_files_by_itself_gets_nothing_altered_either(build: Callable[..., House]) -> None:
    """D1: the broker only points to them; what is damaged there, it is asked for, and refuses."""
    house = build(segment_bytes_max=200_000, recent_bytes_max=1)
    bus = house.connect("ann")
    for number in range(400):
        bus.put("news", value(number))
    path = flip(house, 150)
    got: list[bytes] = []
    with pytest.raises(tidings.StorageDamaged, match=f"{path.name} is damaged"):
        got.extend(each for stored in bus.read_stored("news") for each in stored.batch().values)
    assert got == [value(number) for number in range(150)]
    rest = [each for stored in bus.read_stored("news", 151) for each in stored.batch().values]
    assert rest == [value(number) for number in range(151, 400)]


def test_an_export_ends_with_the_error_and_writes_nothing_altered(build: Callable[..., House], tmp_path: Path) -> None:
    house = filled(build)
    path, out = flip(house, 9), tmp_path / "news.jsonl"
    with pytest.raises(tidings.StorageDamaged, match=f"{path.name} is damaged"):
        export(house.connect("ann").read("news"), "json", out, lambda count: None)
    assert not out.exists()


def test_a_subscriber_is_stopped_and_told_and_all_others_go_on(build: Callable[..., House]) -> None:
    house = filled(build)
    reader = house.connect("reader")
    reader.subscribe("news", start="earliest")
    path = flip(house, 11)
    assert taken(reader, 11) == [value(number) for number in range(11)]
    for _ in range(3):  # Again and again, until something is done about it.
        with pytest.raises(tidings.StorageDamaged, match=rf"{path.name} is damaged.*from offset 12"):
            reader.get("news", timeout=10)
    ann = house.connect("ann")
    assert ann.get("other").value == b"other 0"  # type: ignore[union-attr]
    ann.put("news", b"the news go on")
    ahead = house.connect("ahead")
    ahead.subscribe("news", start=12)
    assert taken(ahead, COUNT - 12) == [value(number) for number in range(12, COUNT)]
    assert ahead.get("news", timeout=10).value == b"the news go on"  # type: ignore[union-attr]


def test_a_loop_over_a_subscription_ends_with_the_error(build: Callable[..., House]) -> None:
    house = filled(build)
    reader = house.connect("reader")
    subscription = reader.subscribe("news", start="earliest")
    flip(house, 5)
    got: list[bytes] = []
    with pytest.raises(tidings.StorageDamaged, match="is damaged"):
        got.extend(message.value for message in subscription)
    assert got == [value(number) for number in range(5)]


def test_a_group_stops_in_front_of_it_and_its_members_are_told(build: Callable[..., House]) -> None:
    house = filled(build)
    flip(house, 5)
    worker = house.connect("worker", beat_ms=100)
    group = worker.subscribe("news", start="earliest", group="workers")
    got: list[bytes] = []
    with pytest.raises(tidings.StorageDamaged, match="is damaged"):
        got.extend(message.value for message in group)
    assert got == [value(number) for number in range(5)]
    behind = house.connect("behind", beat_ms=100)
    others = behind.subscribe("news", start=6, group="others")
    found = [message.value for _, message in zip(range(COUNT - 6), others, strict=False)]
    assert found == [value(number) for number in range(6, COUNT)]


@pytest.mark.parametrize("current", [False, True], ids=["sealed", "current"])
def test_wherever_a_bit_flips_no_altered_message_gets_out(tmp_path: Path, current: bool) -> None:
    """Bit by bit over all of a message and what surrounds it in the file, with a broker that runs meanwhile."""
    house = EmbeddedHouse(tmp_path / "data", **(SMALL if not current else {"recent_bytes_max": 1}))
    bus = house.connect("ann")
    for number in range(COUNT):
        bus.put("news", value(number))
    path = min(house.data.glob("*.journal"))
    at = path.read_bytes().find(value(3))
    try:
        for position in range(at - 300, at + 1500, 11):
            with path.open("r+b") as file:
                file.seek(position)
                byte = file.read(1)[0]
                file.seek(position)
                file.write(bytes([byte ^ 1 << position % 8]))
                file.flush()
                good = damaged = 0
                while good + damaged < COUNT:
                    try:
                        for each in read(bus, good + damaged):
                            assert each == value(good + damaged), position
                            good += 1
                    except tidings.StorageDamaged:
                        damaged += 1
                assert damaged == 1, position
                file.seek(position)
                file.write(bytes([byte]))
    finally:
        house.close()


def test_the_doctor_says_that_the_disk_is_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    house = ServedHouse(tmp_path / "data", **SMALL)
    try:
        filled(lambda **_: house)
        doctor = ["doctor", "--bus", house.broker.address, "--data", str(tmp_path), "--json"]
        assert _broker(doctor, capsys)["state"] == "ok"
        flip(house, 7)
        with pytest.raises(tidings.StorageDamaged):
            list(read(house.connect("bob"), 7, 8))
        found = _broker(doctor, capsys)
        assert (found["state"], "damaged in 1 place" in found["found"]) == ("warn", True)
    finally:
        house.close()


def _broker(doctor: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    main(doctor)
    [row] = [json.loads(line) for line in capsys.readouterr().out.splitlines() if '"broker"' in line]
    found: dict[str, str] = row
    return found


# Beneath a broker that runs.


def segments(house: House) -> list[Path]:
    return sorted(house.data.glob("*.journal"))


def test_a_segment_that_is_cut_beneath_a_broker_is_damage_and_all_else_goes_on(build: Callable[..., House]) -> None:
    house = filled(build)
    bus = house.connect("ann")
    with segments(house)[2].open("r+b") as file:
        file.truncate(5_000)
    got: list[bytes] = []
    at, errors = 0, 0
    while at < COUNT:
        try:
            for found in read(bus, at):
                got.append(found)
                at += 1
        except tidings.StorageDamaged as error:
            assert segments(house)[2].name in str(error)
            errors += 1
            at += 1
    assert errors > 0
    assert got == [value(number) for number in range(COUNT) if value(number) in got]
    assert len(got) + errors == COUNT
    assert bus.put("news", b"more").offset == COUNT
    if isinstance(house, ServedHouse):
        assert house.broker.stop() == 0


@pytest.mark.parametrize("with_index", [False, True])
def test_a_segment_that_is_removed_beneath_a_broker_does_not_stop_it(
    build: Callable[..., House], with_index: bool
) -> None:
    house = filled(build)
    bus = house.connect("ann")
    removed = segments(house)[2]
    removed.unlink()
    if with_index:
        removed.with_suffix(".index").unlink()
    got: list[bytes] = []
    with contextlib.suppress(tidings.StorageDamaged):
        got.extend(read(bus, 0))
    assert got == [value(number) for number in range(len(got))]
    assert bus.put("news", b"more").offset == COUNT


def reached(data: Path) -> int:
    """How far the text of the topic is, by its last checkpoint."""
    with contextlib.closing(Texts(data)) as texts:
        return texts.text("news").next_offset


def test_a_folder_that_is_moved_beneath_a_broker_stays_its_own(build: Callable[..., House]) -> None:
    """F1: what comes to stand at its path is another folder, and is not written to."""
    house = filled(build)
    bus = house.connect("ann")
    moved = house.data.with_name("moved")
    if isinstance(house, StoredHouse):  # Its texts follow the journal, and are not part of it.
        wait_until(lambda: reached(house.data) == COUNT, "a checkpoint of all texts")
    house.data.rename(moved)
    shutil.copytree(moved, house.data, ignore=shutil.ignore_patterns("topics"))
    copied = contents(house.data)
    for number in range(COUNT):
        bus.put("news", b"later %03d " % number * 100)
    assert len(list(moved.glob("*.journal"))) > len(segments(house)) + 1
    house.close()
    after = contents(house.data)
    assert {name: after[name] for name in copied} == copied
    assert set(after) - set(copied) <= {"positions", "topics"}
    with tidings.open(moved) as again:
        assert len(list(read(again, 0))) == 2 * COUNT
