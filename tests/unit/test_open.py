"""The front door of the package: what `tidings.open` takes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import tidings
from tidings.node.clock import ManualClock


def test_an_address_is_not_taken_for_a_folder() -> None:
    with pytest.raises(tidings.InvalidRequest, match=r"tidings\.connect"):
        tidings.open("tcp://127.0.0.1:7400")


def test_other_settings_for_a_folder_that_is_open_are_refused(tmp_path: Path) -> None:
    """They would be ignored: one broker has one set of settings. What it has may be said again, or nothing."""
    with tidings.open(tmp_path, "alice", max_backlog=10, durability="os"):
        for given in ({"max_backlog": 11}, {"durability": "fsync"}, {"clock": lambda: 0}):
            with pytest.raises(tidings.InvalidRequest, match=r"is open in this process with .*(10|os|clock)"):
                tidings.open(tmp_path, "bob", **given)
        tidings.open(tmp_path, "bob", max_backlog=10, durability="os").close()
        tidings.open(tmp_path, "bob").close()
    tidings.open(tmp_path, "bob", max_backlog=11).close()


def test_an_open_that_fails_leaves_the_folder_free(tmp_path: Path) -> None:
    with pytest.raises(tidings.InvalidRequest, match="client name"):
        tidings.open(tmp_path, "")
    with pytest.raises(tidings.InvalidRequest, match="inbox"):
        tidings.open(tmp_path, "alice", inbox="")
    with pytest.raises(tidings.InvalidRequest, match="unknown field"):
        tidings.open(tmp_path, "alice", colour="blue")
    tidings.open(tmp_path, "alice", max_backlog=1).close()  # Other settings: nobody has it open.


def test_a_clock_says_when_a_message_is_due(tmp_path: Path) -> None:
    """What was given back with a delay, and what a member that is silent had in flight."""
    clock = ManualClock()
    with tidings.open(tmp_path, "ann", clock=clock) as ann, tidings.open(tmp_path, "ben", clock=clock) as ben:
        jobs = ann.subscribe("jobs", group="workers")
        ann.put("jobs", "one")
        job = jobs.get()
        assert job is not None
        jobs.nack(job, delay=3600)
        clock.advance(3599)
        assert jobs.get() is None
        clock.advance(1)
        again = jobs.get()
        assert again is not None
        assert again.attempt == 2
        others = ben.subscribe("jobs", group="workers")
        assert others.get() is None
        jobs.close(leave=True)
        last = others.get()
        assert last is not None
        others.ack(last)
        assert next(iter(ben.read("jobs"))).stored_at is not None
        clock.advance(86_400)
        ben.put("jobs", "two")
        first, second = (batch.stored_at for batch in ben.read("jobs"))
        assert first is not None
        assert second is not None
        assert round(second - first) == 86_400 + 3600


def test_after_a_long_silence_a_member_finds_what_is_there_at_once(tmp_path: Path) -> None:
    """The broker has dropped its stream meanwhile; the first get still asks it before the answer is no."""
    clock = ManualClock()
    with tidings.open(tmp_path, "ann", clock=clock) as ann:
        jobs = ann.subscribe("jobs", group="workers")
        news = ann.subscribe("news")
        assert (jobs.get(), news.get()) == (None, None)
        for _ in range(2):
            clock.advance(3600)
            ann.put(["jobs", "news"], "one")
            job, message = jobs.get(), news.get()
            assert job is not None
            assert message is not None
            jobs.ack(job)


def test_a_clock_wakes_who_waits(tmp_path: Path) -> None:
    clock = ManualClock()
    with tidings.open(tmp_path, "ann", clock=clock) as ann:
        jobs = ann.subscribe("jobs", group="workers")
        ann.put("jobs", "one")
        job = jobs.get()
        assert job is not None
        jobs.nack(job, delay=3600)
        got: list[tidings.Message | None] = []
        thread = threading.Thread(target=lambda: got.append(jobs.get(timeout=None)))
        thread.start()
        clock.advance(3600)
        thread.join()
        assert [message and message.text for message in got] == ["one"]


def test_the_inbox_of_another_bus_is_refused_where_that_can_be_seen(tmp_path: Path) -> None:
    """Z10: what it says was handed out is more than there is; to acknowledge that would skip what is to come."""
    for folder, count in (("one", 5), ("two", 2)):
        with tidings.open(tmp_path / folder, "alice") as bus:
            bus.subscribe("news")
            bus.put_many("news", [str(number) for number in range(count)])
    with tidings.open(tmp_path / "one", "alice", inbox=tmp_path / "inbox") as bus:
        assert len(list(bus.subscribe("news").messages(timeout=0))) == 5
    with tidings.open(tmp_path / "two", "alice", inbox=tmp_path / "inbox") as bus:
        for _ in range(2):
            with pytest.raises(tidings.InvalidRequest, match="inbox was used with another broker"):
                bus.get("news")
