"""The follower: texts that say what the journal says, whatever happens to them."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

import tidings
from tidings.protocols.storage import AskStorage, Failed, Last, LastMessage, StorageStatus
from tidings.settings import BrokerSettings
from tidings.storage import follower
from tidings.storage.follower import Follower
from tidings.storage.lines import file_name
from tidings.storage.texts import Text, Texts

SECONDS_MAX = 60


class Watch:
    """A running follower of a folder, told that all of its journal is final."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._woken = threading.Event()
        self.follower = Follower(data, BrokerSettings(), self._woken.set)
        self.follower.start()

    def catch_up(self) -> None:
        """Until every text has all that the journal has."""
        for path in sorted(self._data.glob("*.journal")):
            self.follower.on_final(path.name, path.stat().st_size)
        while self.status().texts_behind_bytes:
            pass

    def status(self) -> StorageStatus:
        answer, _ = self.ask(AskStorage(1))
        assert isinstance(answer, StorageStatus)
        return answer

    def ask(self, call: Last | AskStorage) -> tuple[object, list[bytes]]:
        self._woken.clear()
        self.follower.ask(b"peer", call, 1, 0)
        while not self.follower.replies:
            assert self._woken.wait(SECONDS_MAX)
            self._woken.clear()
        _, answer, buffers = self.follower.replies.popleft()
        return answer, buffers


@contextmanager
def watch(data: Path) -> Iterator[Watch]:
    watching = Watch(data)
    try:
        yield watching
    finally:
        watching.follower.stop()


def follow(data: Path) -> None:
    """A follower's whole life: it catches up and ends."""
    with watch(data) as watching:
        watching.catch_up()


def lines(data: Path, topic: str = "news") -> list[str]:
    return (data / "topics" / file_name(topic)).read_text().splitlines()


def put(data: Path, *texts: str, topic: str = "news", **settings: object) -> None:
    with tidings.open(data, "publisher", **settings) as bus:
        for text in texts:
            bus.put(topic, text)


def numbers(start: int, end: int) -> list[str]:
    return [f"message {number}" for number in range(start, end)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_a_text_has_every_message_of_its_topic_in_order(data: Path) -> None:
    """E5: over several segments, in batches and one by one, with what was put twice written once."""
    with tidings.open(data, "publisher", segment_records_max=5) as bus:
        expected = []
        for number in range(40):
            bus.put("news", f"single {number}")
            bus.put("news", f"twice {number}", id=f"id{number % 20}")
            bus.put_many("sport", [f"batch {number}:{each}" for each in range(10)])
            expected += [f"single {number}"] + ([f"twice {number}"] if number < 20 else [])
        bus.put(["news", "sport"], "both")
    follow(data)
    assert lines(data) == [*expected, "both"]
    assert lines(data, "sport") == [*(f"batch {n}:{each}" for n in range(40) for each in range(10)), "both"]


def test_nothing_is_written_twice_or_left_out_by_a_restart(data: Path) -> None:
    for start in range(0, 50, 10):
        put(data, *numbers(start, start + 10), segment_records_max=7)
        follow(data)
        assert lines(data) == numbers(0, start + 10)


def test_after_a_crash_what_is_beyond_the_last_checkpoint_is_cut_and_written_again(data: Path) -> None:
    """The positions are older than the texts, and the texts end in the middle of a line."""
    put(data, *numbers(0, 10))
    follow(data)
    older = (data / "positions").read_bytes()
    put(data, *numbers(10, 20), topic="news")
    put(data, "new topic", topic="sport")
    follow(data)
    (data / "positions").write_bytes(older)
    with (data / "topics" / "news.txt").open("ab") as file:
        file.write(b"half a li")
    follow(data)
    assert lines(data) == numbers(0, 20)
    assert lines(data, "sport") == ["new topic"]


@pytest.mark.parametrize("loss", ["shorter", "gone", "folder gone", "no positions", "damaged positions"])
def test_what_was_lost_is_written_again_at_the_start(data: Path, loss: str) -> None:
    """E5, test 6 of the document: the folder was removed before the start."""
    put(data, *numbers(0, 10), segment_records_max=3)
    put(data, "hello", topic="sport")
    follow(data)
    text = data / "topics" / "news.txt"
    match loss:
        case "shorter":
            os.truncate(text, 20)
        case "gone":
            text.unlink()
        case "folder gone":
            shutil.rmtree(text.parent)
        case "no positions":
            (data / "positions").unlink()
        case "damaged positions":
            (data / "positions").write_bytes(b"rubbish")
    follow(data)
    assert lines(data) == numbers(0, 10)
    assert lines(data, "sport") == ["hello"]


@pytest.mark.parametrize("loss", ["folder", "file", "a line too many"])
def test_what_is_lost_while_it_runs_is_written_again(data: Path, loss: str) -> None:
    """E5."""
    put(data, *numbers(0, 10))
    put(data, "hello", topic="sport")
    text = data / "topics" / "news.txt"
    with watch(data) as watching:
        watching.catch_up()
        match loss:
            case "folder":
                shutil.rmtree(text.parent)
            case "file":
                text.unlink()
            case "a line too many":
                with text.open("a") as file:
                    file.write("by somebody else\n")
        put(data, "one more")
        watching.catch_up()
        while not (data / "topics" / "sport.txt").exists():
            watching.catch_up()
        watching.catch_up()
    assert lines(data) == [*numbers(0, 10), "one more"]
    assert lines(data, "sport") == ["hello"]


def test_a_text_keeps_what_retention_removes_from_the_journal(data: Path) -> None:
    """What the journal forgets stays in the text, as long as nobody removes the text."""
    put(data, *numbers(0, 20), segment_records_max=5)
    follow(data)
    segments = set(data.glob("*.journal"))
    with tidings.open(data, "publisher", segment_records_max=5, retain_bytes=300) as bus:
        bus.put_many("news", numbers(20, 25))
        for _ in range(10):
            bus.subscribe("sport")
            bus.unsubscribe("sport")
        assert bus.topic("news").first_offset > 0
    assert not segments <= set(data.glob("*.journal")), "no segment was removed"
    follow(data)
    assert lines(data) == numbers(0, 25)


def test_the_last_message(data: Path) -> None:
    """E5: it is returned as it was put, also while its text is behind."""
    with tidings.open(data, "publisher") as bus:
        bus.put_many("news", numbers(0, 10))
        bus.put("news", b"two\nlines \xff", id="taken")
        bus.put("news", "again", id="taken")
        bus.subscribe("empty")
    with watch(data) as watching:
        for path in data.glob("*.journal"):
            watching.follower.on_final(path.name, path.stat().st_size)
        answer, buffers = watching.ask(Last(7, "news"))
        assert isinstance(answer, LastMessage)
        assert (answer.call, answer.topic, answer.offset, answer.publisher) == (7, "news", 10, "publisher")
        assert buffers == [b"two\nlines \xff"]
        for topic in ("empty", "nowhere"):
            answer, _ = watching.ask(Last(8, topic))
            assert isinstance(answer, Failed)
            assert (answer.call, answer.number) == (8, tidings.NoSuchTopic.number)


def test_only_what_is_final_is_written(data: Path) -> None:
    """A record that a broker may still cut off, because nobody was told of it, is in no text."""
    put(data, *numbers(0, 10))
    [journal] = data.glob("*.journal")
    size = journal.stat().st_size
    put(data, "not final")
    with watch(data) as watching:
        watching.follower.on_final(journal.name, size)
        while watching.status().texts_behind_bytes:
            pass
    assert lines(data) == numbers(0, 10)


class CarelessTexts(Texts):
    """A planted fault: what a crash left is not looked at, and lines go behind whatever is there."""

    def survey(self, next_offsets: Mapping[str, int]) -> bool:
        return bool(self.look_after())

    def append(self, text: Text, data: bytes, count: int) -> bool:
        with text.path.open("ab") as file:
            file.write(data)
        text.next_offset += count
        text.size_bytes += len(data)
        return True


def test_a_planted_fault_is_found(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts that are not cut after a crash have lines twice, and the comparison sees it."""
    monkeypatch.setattr(follower, "Texts", CarelessTexts)
    with pytest.raises(AssertionError):
        test_after_a_crash_what_is_beyond_the_last_checkpoint_is_cut_and_written_again(data)


# What the disk has damaged.


def flip(data: Path, text: str) -> None:
    """Flips a bit of a message where it is stored."""
    for path in data.glob("*.journal"):
        content = bytearray(path.read_bytes())
        at = content.find(text.encode())
        if at >= 0:
            content[at + 1] ^= 1
            path.write_bytes(content)
            return
    raise AssertionError(f"{text} is not stored")


@pytest.mark.parametrize("number", [3, 17, 39])
def test_a_text_ends_in_front_of_what_is_damaged_and_the_others_go_on(data: Path, number: int) -> None:
    """Z11: also of what had been taken in before, and is read again for a text that is written again."""
    texts = [f"message {each:02d} " * 40 for each in range(40)]
    put(data, *texts, segment_bytes_max=4_000)
    others = [f"another {each:02d} " * 40 for each in range(40)]
    put(data, *others, topic="other", segment_bytes_max=4_000)
    put(data, "the last", topic="other", segment_bytes_max=4_000)
    follow(data)
    assert lines(data) == texts
    shutil.rmtree(data / "topics")
    flip(data, texts[number])
    with watch(data) as watching:
        watching.catch_up()
        answer, buffers = watching.ask(Last(5, "other"))
        assert isinstance(answer, LastMessage) and buffers == [b"the last"]
        if number == 39:
            answer, _ = watching.ask(Last(6, "news"))
            assert isinstance(answer, Failed) and answer.number == tidings.StorageDamaged.number
    assert lines(data) == texts[:number]
    assert lines(data, "other") == [*others, "the last"]


def test_what_is_damaged_at_the_end_is_neither_written_nor_answered(data: Path) -> None:
    put(data, "one", "two and more of it", "three")
    flip(data, "two and more of it")
    with watch(data) as watching:
        for path in sorted(data.glob("*.journal")):
            watching.follower.on_final(path.name, path.stat().st_size)
        answer, _ = watching.ask(Last(5, "news"))
        assert isinstance(answer, Failed) and answer.number == tidings.StorageDamaged.number
    assert not (data / "topics" / file_name("news")).exists() or lines(data) in ([], ["one"])
