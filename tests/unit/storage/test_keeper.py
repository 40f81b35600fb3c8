"""The keeper: whose files they are, and that no call is ever done twice, by halves, or answered too early."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tidings.journal.disk import RealDisk, SyncFailed, lone_disk
from tidings.protocols.storage import (
    CLOSED,
    FENCED,
    FULL,
    REFUSED,
    AnyStorageAnswer,
    Append,
    Call,
    Create,
    Done,
    Failed,
    Open,
    Opened,
    Piece,
    Read,
    Remove,
    Replace,
    Sync,
    Truncate,
)
from tidings.settings import BrokerSettings
from tidings.simulator.disk import ALLOCATED_SIZE, SimulatedDisk
from tidings.storage.keeper import Keeper

SEGMENT = "00000000000000000000.journal"
INDEX = "00000000000000000000.index"
SNAPSHOT = "00000000000000000007.snapshot"


class Desk:
    """A keeper on a simulated disk, and a broker's words to it."""

    def __init__(self, kind: type[Keeper] = Keeper, capacity_bytes: int | None = None) -> None:
        self.disk = SimulatedDisk(Random(1), capacity_bytes)
        self._kind = kind
        self._sessions = 100
        self.calls = 0
        self.restart()

    def restart(self) -> None:
        self.keeper = self._kind(self.disk, self._new_session)

    def _new_session(self) -> int:
        self._sessions += 1
        return self._sessions

    def open(self, token: bytes = b"one", renews: bool = False) -> AnyStorageAnswer:
        self.calls += 1
        return self.say(Open(self.calls, 1, token, renews, BrokerSettings()))

    def session(self, token: bytes = b"one") -> int:
        opened = self.open(token)
        assert isinstance(opened, Opened)
        return opened.session

    def say(self, call: Call, *buffers: bytes) -> AnyStorageAnswer:
        answer, _ = self.keeper.handle(call, buffers)
        return answer

    def append(self, session: int, position: int, data: bytes, number: int | None = None) -> AnyStorageAnswer:
        self.calls += 1
        return self.say(Append(number or self.calls, session, SEGMENT, position, True), data)

    def content(self) -> bytes:
        return bytes(self.disk.map(SEGMENT))


def segment(desk: Desk) -> int:
    """A session with an empty segment."""
    session = desk.session()
    desk.calls += 1
    assert isinstance(desk.say(Create(desk.calls, session, SEGMENT)), Done)
    return session


def reason(answer: AnyStorageAnswer) -> str:
    assert isinstance(answer, Failed), answer
    return answer.reason


def check_answered_is_on_disk(desk: Desk) -> None:
    session = segment(desk)
    assert isinstance(desk.append(session, 0, b"answered"), Done)
    desk.disk.crash(Random(3))
    assert desk.content().rstrip(b"\0") == b"answered"  # Zeros are the room that was made ahead.


def check_repeated_is_done_once(desk: Desk) -> None:
    session = segment(desk)
    desk.append(session, 0, b"first", number=50)
    assert desk.append(session, 0, b"first", number=50) == Done(50)
    assert desk.content() == b"first"
    desk.append(session, 5, b"second", number=51)
    assert reason(desk.append(session, 0, b"first", number=50)) == REFUSED
    assert desk.content() == b"firstsecond"


def test_what_was_answered_survives_a_power_cut() -> None:
    """E5: an append is answered when it is on disk."""
    check_answered_is_on_disk(Desk())


def test_a_repeated_append_is_answered_again_and_done_once() -> None:
    """E5: its answer was lost, and it came again; or it comes so late that others came after it."""
    check_repeated_is_done_once(Desk())


class AnswersBeforeTheSync(Keeper):
    """A planted fault."""

    def _change(self, call: object, buffers: object) -> None:
        if isinstance(call, Append):
            call = Append(call.call, call.session, call.name, call.position, False)
        super()._change(call, buffers)  # type: ignore[arg-type]


class DoublesWhatComesAgain(Keeper):
    """A planted fault: no memory of the last change, and no look at the position."""

    def _change(self, call: object, buffers: object) -> None:
        if isinstance(call, Append):
            call = Append(call.call, call.session, call.name, self._sizes[call.name], call.sync)
        super()._change(call, buffers)  # type: ignore[arg-type]

    def _on_change(self, call: object, buffers: object) -> AnyStorageAnswer:
        self._last_answer = Done(0)
        return super()._on_change(call, buffers)  # type: ignore[arg-type]


def test_an_answer_before_the_sync_is_found() -> None:
    """A test that cannot fail proves nothing."""
    with pytest.raises(AssertionError):
        check_answered_is_on_disk(Desk(AnswersBeforeTheSync))


def test_an_append_that_is_done_twice_is_found() -> None:
    with pytest.raises(AssertionError):
        check_repeated_is_done_once(Desk(DoublesWhatComesAgain))


@pytest.mark.parametrize("position", [0, 4, 6, 1000])
def test_bytes_for_anywhere_but_the_end_are_refused(position: int) -> None:
    desk = Desk()
    session = segment(desk)
    desk.append(session, 0, b"first")
    assert reason(desk.append(session, position, b"second")) == REFUSED
    assert desk.content() == b"first"


def test_a_second_broker_fences_the_first() -> None:
    """E5: and the first does not push it out again, neither by what it has in flight nor by opening again."""
    desk = Desk()
    first = segment(desk)
    second = desk.session(b"two")
    assert reason(desk.append(first, 0, b"from the first")) == CLOSED
    assert reason(desk.open(b"one", renews=True)) == FENCED
    assert isinstance(desk.append(second, 0, b"from the second"), Done)
    assert desk.content() == b"from the second"
    assert reason(desk.say(Read(1, 1, SEGMENT, 0, 10))) == FENCED
    assert isinstance(desk.say(Read(1, 2, SEGMENT, 0, 10)), Piece)


def test_the_fence_outlives_the_server() -> None:
    desk = Desk()
    segment(desk)
    desk.session(b"two")
    desk.disk.crash()
    desk.restart()
    assert reason(desk.open(b"one", renews=True)) == FENCED
    assert isinstance(desk.open(b"two", renews=True), Opened)


def test_after_a_restart_the_broker_learns_what_is_there_and_that_nothing_is_remembered() -> None:
    desk = Desk()
    session = segment(desk)
    desk.append(session, 0, b"kept")
    desk.disk.crash()
    desk.restart()
    assert reason(desk.append(session, 4, b"more")) == CLOSED
    opened = desk.open(renews=True)
    assert isinstance(opened, Opened)
    # Behind the four bytes are the zeros of the room that was made ahead: the broker will cut them off.
    assert (opened.epoch, opened.last_change, opened.files) == (1, 0, {SEGMENT: ALLOCATED_SIZE})


def test_a_broker_whose_connection_broke_learns_what_was_done() -> None:
    desk = Desk()
    session = segment(desk)
    desk.append(session, 0, b"done", number=77)
    opened = desk.open(renews=True)
    assert isinstance(opened, Opened)
    assert (opened.last_change, opened.files) == (77, {SEGMENT: 4})


def test_a_full_disk_changes_nothing() -> None:
    """E5."""
    desk = Desk(capacity_bytes=4_000)
    session = segment(desk)
    desk.append(session, 0, b"kept")
    assert reason(desk.append(session, 4, bytes(8_000))) == FULL
    assert desk.content() == b"kept"
    assert isinstance(desk.append(session, 4, b" on"), Done)


def test_a_failed_sync_is_not_answered() -> None:
    desk = Desk()
    session = segment(desk)
    desk.disk.fail_next_sync()
    with pytest.raises(SyncFailed):
        desk.append(session, 0, b"in doubt")


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "holder", "lock", "x.journal", "1.journal", SEGMENT + "/.."])
def test_only_a_journals_files_can_be_named(name: str) -> None:
    desk = Desk()
    session = segment(desk)
    for number, call in enumerate(
        (
            Create(1_000, session, name),
            Replace(1_001, session, name),
            Append(1_002, session, name, 0, True),
            Truncate(1_003, session, name, 0),
            Sync(1_004, session, name),
            Read(1_005, 1, name, 0, 10),
        )
    ):
        assert reason(desk.say(call, b"x")) == REFUSED, number
    assert isinstance(desk.say(Remove(1_006, session, (name,))), Done)
    assert desk.disk.names() == [SEGMENT, "holder"]


def test_a_file_that_is_still_read_is_hidden_and_goes_later() -> None:
    """What the texts lack must not be removed before they have it, nor an index before its segment."""
    desk = Desk()
    session = segment(desk)
    desk.say(Replace(60, session, INDEX), b"index")
    desk.say(Replace(61, session, SNAPSHOT), b"snapshot")
    kept = {SEGMENT}
    desk.keeper.keeps = lambda name: name in kept
    assert isinstance(desk.say(Remove(62, session, (SEGMENT, INDEX, SNAPSHOT))), Done)
    assert reason(desk.say(Read(63, 1, SEGMENT, 0, 1))) == REFUSED
    assert desk.disk.names() == [INDEX, SEGMENT, "holder"]
    kept.clear()
    desk.keeper.release()
    assert desk.disk.names() == ["holder"]


def test_a_segment_that_was_taken_back_can_be_made_again() -> None:
    """No room for its first record: the broker removes it, and makes it when there is room."""
    desk = Desk()
    session = segment(desk)
    desk.keeper.keeps = lambda name: True
    desk.say(Remove(60, session, (SEGMENT,)))
    assert isinstance(desk.say(Create(61, session, SEGMENT)), Done)


def test_another_version_is_refused() -> None:
    desk = Desk()
    assert reason(desk.say(Open(1, 99, b"one", False, BrokerSettings()))) == REFUSED


def test_a_broker_is_fenced_when_the_folder_was_with_a_broker_alone_meanwhile(tmp_path: Path) -> None:
    """E5: it would take what that one has stored for what it had not been told of yet, and cut it off."""
    disk = RealDisk(tmp_path)
    keeper = Keeper(disk, lambda: 1)
    assert isinstance(keeper.handle(Open(1, 1, b"one", False, BrokerSettings()), ())[0], Opened)
    disk.close()
    lone_disk(tmp_path).close()
    disk = RealDisk(tmp_path)
    keeper = Keeper(disk, lambda: 2)
    assert reason(keeper.handle(Open(2, 1, b"one", True, BrokerSettings()), ())[0]) == FENCED
    assert isinstance(keeper.handle(Open(3, 1, b"two", False, BrokerSettings()), ())[0], Opened)
    disk.close()
