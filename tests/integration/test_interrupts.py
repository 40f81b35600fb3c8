"""An exception from outside, anywhere in a call: nothing is lost, doubled or in disorder, and nobody waits for ever.

It comes as it does to a user: a signal's handler raises it, at some moment within the time that such a call takes.
An embedded bus also meets it at counted places, where the interpreter looks for signals: when a function begins, and
when one that is not Python's is over.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import FrameType

import pytest

import tidings
from tests.integration.conftest import House

ROUNDS = 15
STRIDE = 9
"""One place in so many is tried, from another first one in each run."""


class Outside(BaseException):
    """As a KeyboardInterrupt would be, but that pytest lets it be."""


class Alarm:
    """Breaks calls off by a signal."""

    def __init__(self) -> None:
        self._armed = False

    def _ring(self, *_: object) -> None:
        if self._armed:
            raise Outside

    def run(self, call: Callable[[], object], seconds: float) -> None:
        """Makes a call, and breaks it off after so long unless it is over by then."""
        before, limit = signal.signal(signal.SIGALRM, self._ring), signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            self._armed = True
            signal.setitimer(signal.ITIMER_REAL, seconds)
            call()
        except Outside:
            pass
        finally:
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            signal.setitimer(signal.ITIMER_REAL, *limit)  # The limit of the test itself.


def break_off(call: Callable[[], object], place: int) -> int:
    """Makes a call, and breaks it off at a place; says how many it came to."""
    count = 0

    def look(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        if event == "c_return" or (event == "call" and "tidings" in frame.f_code.co_filename):
            count += 1
            if count == place:
                sys.setprofile(None)
                raise Outside

    sys.setprofile(look)
    try:
        with contextlib.suppress(Outside):
            call()
    finally:
        sys.setprofile(None)
    return count


def put(bus: tidings.Bus) -> object:
    return bus.put("news", b"broken off")


def put_soon(bus: tidings.Bus) -> object:
    return bus.put_soon("news", b"broken off").result()


def put_many(bus: tidings.Bus) -> object:
    return bus.put_many("news", [b"broken off"])


def transact(bus: tidings.Bus) -> object:
    with bus.transaction() as transaction:
        transaction.put("news", b"broken off")
    return transaction.receipts


def get(bus: tidings.Bus) -> object:
    return bus.get("news")


def loop(bus: tidings.Bus) -> object:
    return [message.value for message in bus.subscribe("news").messages(timeout=0)]


def run(bus: tidings.Bus) -> object:
    bus.on("news")(lambda message: None)
    return bus.run(timeout=0)


CALLS = [put, put_soon, put_many, transact, get, loop, run]


def stored(bus: tidings.Bus) -> list[bytes]:
    return [value for batch in bus.read("news", 0) for value in batch.values]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Where the interpreter drops them.
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_is_broken_off_anywhere(build: Callable[..., House], call: Callable[[tidings.Bus], object]) -> None:
    house = build(durability="os")
    with connect(house) as bus:
        bus.subscribe("news")
        bus.put("news", b"0")
        began = time.perf_counter()
        call(bus)
        usual = time.perf_counter() - began
    expected = [value for value in stored_again(house) if value != b"broken off"]
    alarm, rng = Alarm(), Random()
    for at in range(ROUNDS):
        bus = connect(house)
        alarm.run(lambda bus=bus: call(bus), rng.uniform(0.00002, usual))  # type: ignore[misc]
        with contextlib.suppress(tidings.InvalidRequest, tidings.StorageError):
            value = b"after %d" % at
            bus.put("news", value)
            expected.append(value)
        with contextlib.suppress(tidings.InvalidRequest, tidings.StorageError):
            bus.close()
        found = [each for each in stored_again(house) if each != b"broken off"]
        assert found == expected


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("call", CALLS)
def test_an_embedded_call_broken_off_at_any_place(tmp_path: Path, call: Callable[[tidings.Bus], object]) -> None:
    place = Random().randrange(STRIDE) + 1
    for folder in (tmp_path / str(at) for at in itertools.count()):
        bus = tidings.open(folder, "ann", durability="os")
        bus.subscribe("news")
        bus.put("news", b"0")
        bus.close()  # So that the call opens the journal's files.
        bus, expected = tidings.open(folder, "ann", durability="os"), [b"0"]
        places = break_off(lambda bus=bus: call(bus), place)  # type: ignore[misc]
        with contextlib.suppress(tidings.InvalidRequest, tidings.StorageError):
            bus.put("news", b"after")
            expected.append(b"after")
        with contextlib.suppress(tidings.InvalidRequest, tidings.StorageError):
            bus.close()
        with tidings.open(folder, "ann") as again:
            assert [value for value in stored(again) if value != b"broken off"] == expected, f"at {place}"
            assert again.put("news", b"again").offset == len(stored(again)) - 1
        if places < place:
            return
        place += STRIDE


def connect(house: House) -> tidings.Bus:
    return house._open("ann", timeout=2.0)  # Closed here, and not by the house.


def stored_again(house: House) -> list[bytes]:
    with house._open(None) as bus:
        return stored(bus)


def test_a_bus_that_was_broken_off_says_so_and_lets_go_of_its_folder(tmp_path: Path) -> None:
    bus = tidings.open(tmp_path, "ann")
    bus.put("news", b"0")

    def values() -> object:
        raise Outside

    with pytest.raises(Outside):
        bus.put_many("news", (values() for _ in range(3)))  # type: ignore[misc]
    with pytest.raises(tidings.InvalidRequest, match=r"broken off by Outside in the middle of its work.*connect again"):
        bus.put("news", b"1")
    with pytest.raises(tidings.InvalidRequest, match="broken off"):
        bus.close()
    bus.close()
    with tidings.open(tmp_path, "ann") as again:
        assert again.put("news", b"1").offset == 1


def test_recursion_that_ends_in_a_put_leaves_nothing_half_done(tmp_path: Path) -> None:
    def down(bus: tidings.Bus) -> None:
        bus.put("news", b"deep")
        down(bus)

    bus = tidings.open(tmp_path, "ann", durability="os")
    with pytest.raises(RecursionError):
        down(bus)
    with contextlib.suppress(tidings.InvalidRequest, tidings.StorageError):
        bus.put("news", b"after")
    with contextlib.suppress(tidings.InvalidRequest, tidings.StorageError):
        bus.close()
    with tidings.open(tmp_path, "ann") as again:
        assert again.put("news", b"again").offset == len(stored(again)) - 1
