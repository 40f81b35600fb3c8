"""Publishers and subscribers at all doors of a ring, and a check of everything that they were told and saw.

Every publisher puts to topics drawn by lot, and numbers what it puts in each of them. Every topic has two subscribers.
A put that was acknowledged has to be seen by both, once, at the offset that was acknowledged, behind what its publisher
put before it in that topic.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Self

import tidings
from tests.integration.group_load import check_subscriber

JOIN_SECONDS_MAX = 240.0
READERS_OF_A_TOPIC = 2
PAUSE_SECONDS = 0.02
"""Between two puts of a publisher, so that the machine has time for the nodes as well."""


class RingLoad:
    """Threads that publish and subscribe until they are told to end, each with a bus of its own."""

    def __init__(self, addresses: Callable[[], list[str]], topics: int, publishers: int, subscribers: int) -> None:
        self._addresses = addresses
        self.topics = [f"topic-{number}" for number in range(topics)]
        self.offsets: dict[str, dict[str, int | None]] = {topic: {} for topic in self.topics}
        """What was acknowledged in each topic, and where."""
        self.seen: dict[tuple[int, str], list[tuple[int, str]]] = {}
        """What each subscriber got of each of its topics."""
        self.longest_wait = 0.0
        """Of any put, in seconds, and of which topic."""
        self.longest_topic = ""
        self.count = 0
        self.failures: list[BaseException] = []
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._readers: list[tidings.Bus] = []
        for place in range(topics):
            for turn in range(READERS_OF_A_TOPIC):
                self.seen[(place + turn * (subscribers // 2)) % subscribers, self.topics[place]] = []
        self._subscribed = threading.Barrier(subscribers + 1)
        self._threads = [self._thread(self._publish, number, "publisher") for number in range(publishers)]
        self._reading = [self._thread(self._read, number, "subscriber") for number in range(subscribers)]

    def _thread(self, work: Callable[[tidings.Bus, int], None], number: int, kind: str) -> threading.Thread:
        def run() -> None:
            try:
                addresses = self._addresses()
                door = number % len(addresses)
                nodes = ",".join([*addresses[door:], *addresses[:door]][:16])
                with tidings.connect(nodes, f"{kind}{number}", timeout=2.0, retries=60) as bus:
                    work(bus, number)
            except BaseException as error:
                with self._changed:
                    self.failures.append(error)
                    self._changed.notify_all()
                self._subscribed.abort()
                raise

        return threading.Thread(target=run, name=f"{kind}{number}", daemon=True)

    def __enter__(self) -> Self:
        for thread in self._reading:
            thread.start()
        self._subscribed.wait(JOIN_SECONDS_MAX)  # What is put from here on is owed to everybody.
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Lets the publishers end, and the subscribers come to the end of what was published."""
        self._stop.set()
        for thread in self._threads:
            thread.join(JOIN_SECONDS_MAX)
        if kind is None and not self.failures:
            with self._changed:
                self._changed.wait_for(lambda: self.failures or not self.missing, JOIN_SECONDS_MAX)
        for bus in self._readers:
            bus.stop()
        for thread in self._reading:
            thread.join(JOIN_SECONDS_MAX)
        alive = [thread.name for thread in self._threads + self._reading if thread.is_alive()]
        if kind is None:
            assert not self.failures, self.failures
            assert not alive, f"these did not end: {alive}"

    @property
    def missing(self) -> int:
        """Deliveries that are owed and have not come."""
        owed = sum(READERS_OF_A_TOPIC * len(offsets) for offsets in self.offsets.values())
        return max(0, owed - sum(map(len, self.seen.values())))

    def wait_for(self, count: int) -> None:
        """Until so many more messages have been acknowledged."""
        with self._changed:
            goal = self.count + count
            assert self._changed.wait_for(lambda: self.failures or self.count >= goal, JOIN_SECONDS_MAX), "no acks"
        assert not self.failures, self.failures

    def _publish(self, bus: tidings.Bus, number: int) -> None:
        rng, numbers = random.Random(number), dict.fromkeys(self.topics, 0)
        while not self._stop.wait(PAUSE_SECONDS):
            topic = rng.choice(self.topics)
            value = f"{bus.client_id}:{numbers[topic]}"
            numbers[topic] += 1
            began = time.monotonic()
            receipt = bus.put(topic, value)
            waited = time.monotonic() - began
            with self._changed:
                assert value not in self.offsets[topic]
                self.offsets[topic][value] = receipt.offset
                self.count += 1
                if waited > self.longest_wait:
                    self.longest_wait, self.longest_topic = waited, topic
                self._changed.notify_all()

    def _read(self, bus: tidings.Bus, number: int) -> None:
        for reader, topic in self.seen:
            if reader == number:
                bus.on(topic)(self._handler(number, topic))
        self._readers.append(bus)
        self._subscribed.wait(JOIN_SECONDS_MAX)
        bus.run()

    def _handler(self, number: int, topic: str) -> Callable[[tidings.Message], None]:
        seen = self.seen[number, topic]

        def take(message: tidings.Message) -> None:
            with self._changed:
                seen.append((message.offset, message.text))
                if self._stop.is_set():
                    self._changed.notify_all()

        return take

    def check(self) -> None:
        """Everything that was acknowledged came once, in order and where it was acknowledged, to all its readers."""
        readers: dict[str, int] = defaultdict(int)
        for (_, topic), rows in self.seen.items():
            check_subscriber(self.offsets[topic], rows)
            readers[topic] += 1
        assert set(readers.values()) == {READERS_OF_A_TOPIC}, "a topic is not read by as many as it should be"
        assert len(readers) == len(self.topics)
