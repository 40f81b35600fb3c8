"""A process that dies at every single write, sync and rename of a short piece of work."""

from __future__ import annotations

import os
import signal
import traceback
import types
from pathlib import Path

import pytest

import tidings
from tidings.journal import disk

PRIMITIVES = ("pwritev", "pwrite", "posix_fallocate", "fdatasync", "fsync", "rename", "replace", "ftruncate", "unlink")
PUTS = 24


class DeadlyOs(types.ModuleType):
    """The os module, but the process dies at the n-th call that changes the disk: before it, after it, or half-way."""

    def __init__(self, die_at: int, how: str) -> None:
        super().__init__("os")
        self.calls = 0
        self._die_at = die_at
        self._how = how

    def __getattr__(self, name: str) -> object:
        real = getattr(os, name)
        if name not in PRIMITIVES:
            return real

        def call(*arguments: object, **named: object) -> object:
            self.calls += 1
            if self.calls == self._die_at:
                if self._how == "after":
                    real(*arguments, **named)
                elif self._how == "half" and name in ("pwritev", "pwrite"):
                    data = b"".join(arguments[1]) if name == "pwritev" else arguments[1]  # type: ignore[arg-type]
                    os.pwrite(arguments[0], data[: len(data) // 2], arguments[2])  # type: ignore[arg-type]
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)

        return call


def work(folder: Path, report: int) -> None:
    """Publishes and reads, over several segments; says after each step what was acknowledged."""
    with tidings.open(folder, "worker", segment_records_max=12, segment_bytes_max=2_000) as bus:
        bus.subscribe("news")
        last = bus.publisher("worker").last_sequence("news")
        for number in range(last, PUTS):
            bus.put("news", str(number))
            os.write(report, b"put %d\n" % number)
            if number % 3 == 0:
                message = bus.get("news")
                assert message is not None
                os.write(report, b"got %d\n" % message.offset)


def run_dying(folder: Path, die_at: int, how: str) -> tuple[bool, list[str]]:
    """Works in a child process that dies; whether it did, and what it had said by then."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            disk.os = DeadlyOs(die_at, how)  # type: ignore[assignment]
            work(folder, writing)
            code = 0
        except BaseException:  # noqa: BLE001 - the child's code says that something went wrong
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as lines:
        said = lines.read().splitlines()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True, said
    assert os.WEXITSTATUS(status) == 0
    return False, said


def numbers(said: list[str], what: str) -> list[int]:
    return [int(line.split()[1]) for line in said if line.startswith(what)]


def check(folder: Path, said: list[str]) -> None:
    """Everything acknowledged is there once and in order, the cursor is where it was acknowledged or just behind."""
    acknowledged, got = numbers(said, "put"), numbers(said, "got")
    assert got == list(range(len(got)))
    with tidings.open(folder) as bus:
        if not acknowledged and not bus.topics():
            return
        stored = [int(message.text) for message in bus.subscribe("news", start="earliest").messages(timeout=0)]
    assert stored == list(range(len(stored))), "lost, doubled or out of order"
    assert len(acknowledged) <= len(stored) <= len(acknowledged) + 1
    with tidings.open(folder, "worker") as bus:
        # Looked at and not acknowledged: the loop is left before the next one is asked for.
        following = next(bus.subscribe("news").messages(timeout=0), None)
        if following is not None:
            assert following.offset - len(got) in (0, 1)


def check_sequel(before: list[str], after: list[str]) -> None:
    """Started again, the work ends whole. The one message whose get was cut short may have been acknowledged."""
    acknowledged = numbers(before, "put") + numbers(after, "put")
    assert acknowledged == sorted(set(acknowledged)), "a put was done twice"
    assert set(range(PUTS)) - set(acknowledged) <= {len(numbers(before, "put"))}
    got = numbers(before, "got") + numbers(after, "got")
    assert got == sorted(set(got)), "a message came twice"
    assert set(range(got[-1])) - set(got) <= {len(numbers(before, "got"))}


@pytest.mark.parametrize("how", ["before", "half", "after"])
def test_death_at_every_write_sync_and_rename(tmp_path: Path, how: str) -> None:
    """Z11: kill -9 at any instruction that touches the disk, and the work goes on as if nothing had been."""
    die_at, deaths = 1, 0
    while True:
        folder = tmp_path / f"{die_at}"
        died, said = run_dying(folder, die_at, how)
        if not died:
            break
        deaths += 1
        check(folder, said)
        died, more = run_dying(folder, 10**9, "before")
        assert not died
        check_sequel(said, more)
        die_at += 1 if die_at < 40 else 3
    assert deaths > 40


def test_the_sweep_finds_a_missing_sync_of_the_mind(tmp_path: Path) -> None:
    """A planted fault: a journal that loses its last record is noticed before the check."""
    folder = tmp_path / "data"
    _, said = run_dying(folder, 10**9, "before")
    newest = max(folder.glob("*.journal"))
    with newest.open("r+b") as file:
        file.truncate(newest.stat().st_size - 200)
    with pytest.raises(tidings.StorageDamaged, match="had been stored"):
        check(folder, said)
