"""A publisher, two subscribers and a consumer group on one topic, while the bus under them grows."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Self

import tidings

TOPIC = "orders"
KEYS = 10
SUBSCRIBERS = ("ann", "bob")
WORKERS = ("kim", "lea")
JOIN_SECONDS_MAX = 300.0


class GrowthLoad:
    """Threads, each with a bus of its own. What was put is a number, counted up from 0."""

    def __init__(self, addresses: str, batch: int, pause: float, topic: str = TOPIC, suffix: str = "") -> None:
        self._addresses = addresses
        self._topic = topic
        self._suffix = suffix
        """Of the names of its clients."""
        self._batch = batch
        self._pause = pause
        self.count = 0
        """Messages that were acknowledged."""
        self.longest_put = 0.0
        self.seen: dict[str, list[int]] = {name: [] for name in SUBSCRIBERS}
        self.worked: dict[str, list[tuple[int, bool]]] = {name: [] for name in WORKERS}
        """What each member of the group got, and whether it was told that another may have had it."""
        self.failures: list[BaseException] = []
        self._stop = threading.Event()
        self._done = threading.Event()
        self._began = threading.Barrier(len(SUBSCRIBERS) + len(WORKERS) + 1)
        self._threads = [
            self._thread("pia", self._publish),
            *(self._thread(name, self._read) for name in SUBSCRIBERS),
            *(self._thread(name, self._work) for name in WORKERS),
        ]

    def _thread(self, name: str, do: Callable[[tidings.Bus, str], None]) -> threading.Thread:
        def run() -> None:
            try:
                with tidings.connect(self._addresses, name + self._suffix, timeout=2.0, retries=60) as bus:
                    do(bus, name)
            except BaseException as error:
                self.failures.append(error)
                self._began.abort()
                raise

        return threading.Thread(target=run, name=name, daemon=True)

    def _publish(self, bus: tidings.Bus, _name: str) -> None:
        self._began.wait(JOIN_SECONDS_MAX)
        while not self._stop.is_set():
            numbers = range(self.count, self.count + self._batch)
            began = time.monotonic()
            receipts = bus.put_many(
                self._topic, [b"%d" % each for each in numbers], keys=[b"%d" % (each % KEYS) for each in numbers]
            )
            self.longest_put = max(self.longest_put, time.monotonic() - began)
            assert receipts.first_offset == self.count, "offsets go on as if nothing had happened"
            self.count += self._batch
            self._stop.wait(self._pause)

    def _read(self, bus: tidings.Bus, name: str) -> None:
        subscription = bus.subscribe(self._topic, start="earliest")
        self._began.wait(JOIN_SECONDS_MAX)
        while not self._done.is_set():
            for batch in subscription.batches(timeout=0.5):
                self.seen[name] += map(int, batch.values)

    def _work(self, bus: tidings.Bus, name: str) -> None:
        subscription = bus.subscribe(self._topic, group="workers", start="earliest")
        self._began.wait(JOIN_SECONDS_MAX)
        while not self._done.is_set():
            for share in subscription.batches(timeout=0.5):
                self.worked[name] += [(int(message.value), message.redelivered) for message in share]

    def wait_for(self, count: int) -> None:
        """Until so many more messages have been put."""
        self._wait(lambda end=self.count + count: self.count >= end)  # type: ignore[misc]

    def _wait(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + JOIN_SECONDS_MAX
        while not done():
            assert not self.failures, self.failures
            assert time.monotonic() < deadline, self._describe()
            time.sleep(0.02)

    def _describe(self) -> str:
        seen = {name: len(each) for name, each in self.seen.items()}
        return f"{self.count} put, seen {seen}, worked on {len(self._first())}"

    def _first(self) -> set[int]:
        return {number for each in self.worked.values() for number, _ in each}

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        if kind is None:
            self._threads[0].join(JOIN_SECONDS_MAX)
            self._wait(self._all_seen)
        self._done.set()
        for thread in self._threads:
            thread.join(JOIN_SECONDS_MAX)

    def _all_seen(self) -> bool:
        return all(len(each) >= self.count for each in self.seen.values()) and len(self._first()) >= self.count

    def check(self) -> None:
        """Every message once and in order for each subscriber, and once for the group, in order within each key."""
        assert not self.failures, self.failures
        for name, numbers in self.seen.items():
            assert numbers == list(range(self.count)), f"{name}: {_oddity(numbers)}"
        assert self._first() == set(range(self.count))
        unmarked = Counter(number for each in self.worked.values() for number, again in each if not again)
        assert max(unmarked.values()) == 1, "what somebody had is marked for the next"
        for each in self.worked.values():
            for key in range(KEYS):
                lane = [number for number, again in each if not again and number % KEYS == key]
                assert lane == sorted(lane), f"the key {key} is out of order"


def _oddity(numbers: Iterable[int]) -> str:
    """The first place where numbers do not count up by one."""
    return next((f"{one}, then {other}" for one, other in pairwise(numbers) if other != one + 1), "too few")
