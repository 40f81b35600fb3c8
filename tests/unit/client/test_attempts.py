"""What counts as an attempt: a message that was handed to a handler or to the body of a loop (C9, C11)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

import tidings

BAD = ("0", "3")
LAST = "5"
TRIES = 3
EXPECTED = [
    *(("0", attempt) for attempt in range(1, TRIES + 1)),
    *(("1", 1), ("2", 1)),
    *(("3", attempt) for attempt in range(1, TRIES + 1)),
    *(("4", 1), ("5", 1)),
]

Work = Callable[[tidings.Message], None]


class Failed(Exception):
    """The message cannot be worked on."""


def handlers(folder: Path, work: Work) -> bool:
    """A handler that fails ends the run, and the run begins again."""
    with tidings.open(folder, client_id="ann") as bus:

        @bus.on("jobs", group="workers")
        def serve(message: tidings.Message) -> None:
            work(message)
            if message.text == LAST:
                bus.stop()

        for _ in range(2 * TRIES + 1):
            with contextlib.suppress(Failed):
                bus.run(timeout=10)
                return True
    return False


def loops_that_close(folder: Path, work: Work) -> bool:
    """The body of the loop fails, and the subscription is closed by that."""
    with tidings.open(folder, client_id="ann") as bus, contextlib.suppress(Failed):
        with bus.subscribe("jobs", group="workers") as jobs:
            for job in jobs.messages(timeout=0):
                work(job)
        return True
    return False


def loops_of_one_subscription(folder: Path, work: Work) -> bool:
    with tidings.open(folder, client_id="ann") as bus:
        jobs = bus.subscribe("jobs", group="workers")
        for _ in range(2 * TRIES + 1):
            with contextlib.suppress(Failed):
                for job in jobs.messages(timeout=0):
                    work(job)
    return True


def loops_that_leave(folder: Path, work: Work) -> bool:
    """The member leaves the group with the message in flight."""
    with tidings.open(folder, client_id="ann") as bus:
        jobs = bus.subscribe("jobs", group="workers")
        try:
            while (job := jobs.get(timeout=0)) is not None:
                work(job)
                jobs.ack(job)
        except Failed:
            jobs.unsubscribe()
            return False
    return True


def sessions_that_end(folder: Path, work: Work) -> bool:
    """Nobody closes the subscription; the bus is closed."""
    with tidings.open(folder, client_id="ann") as bus, contextlib.suppress(Failed):
        for job in bus.subscribe("jobs", group="workers").messages(timeout=0):
            work(job)
        return True
    return False


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize(
    "way", [handlers, loops_that_close, loops_of_one_subscription, loops_that_leave, sessions_that_end]
)
def test_what_fails_counts_and_what_was_only_fetched_does_not(
    tmp_path: Path, way: Callable[[Path, Work], bool], key: str | None
) -> None:
    """C9, C11: the failing ones have their tries and go to the dead letters; the others are first attempts."""
    seen: list[tuple[str, int]] = []

    def work(message: tidings.Message) -> None:
        seen.append((message.text, message.attempt))
        if message.text in BAD:
            raise Failed

    with tidings.open(tmp_path, client_id="publisher", dead_letter="dead", deliveries_max=TRIES) as publisher:
        publisher.subscribe("dead")
        for number in range(6):
            publisher.put("jobs", str(number), key=key)
        ends = 0
        while not way(tmp_path, work):
            ends += 1
            assert ends <= 2 * TRIES, "nothing is tried for ever"
        assert sorted(seen) == EXPECTED
        if key is not None:
            assert seen == EXPECTED
        assert [message.text for message in (publisher.get("dead"), publisher.get("dead")) if message] == list(BAD)
        assert publisher.get("dead") is None
