"""Publishers, subscribers and a consumer group at work, and a check of everything that they were told and saw.

Every publisher numbers what it puts. A put that is acknowledged has to be seen by every subscriber, once, at the offset
that was acknowledged, behind what its publisher put before it. The members of the consumer group share their topic:
each message is handled by one of them, in the order of its key, and again only with a higher `attempt`.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple, Self

import tidings

NEWS, JOBS = "news", "jobs"
LANES = 10
SOON = 20
JOIN_SECONDS_MAX = 120.0


class Handled(NamedTuple):
    """A message of the consumer group, as a member got it."""

    lane: str
    value: str
    attempt: int


class Load:
    """Threads that publish and subscribe until they are told to end."""

    def __init__(self, address: Callable[[], str], batch: int = 100) -> None:
        self._address = address
        self._batch = batch
        self.offsets: dict[str, dict[str, int | None]] = {NEWS: {}, JOBS: {}}
        """What was acknowledged in each topic, and where, if that was told for each message."""
        self.acknowledged_at: list[float] = []
        """When the single puts of one publisher that does nothing else were acknowledged."""
        self.seen: dict[str, list[tuple[int, str]]] = {NEWS: [], JOBS: []}
        """What the subscriber of each topic got."""
        self.handled: list[Handled] = []
        self.failures: list[BaseException] = []
        self._stop = threading.Event()
        self._ends: dict[str, int] | None = None
        self._changed = threading.Condition()
        self._publishers = [
            self._thread(self._put_one_by_one, "probe"),
            self._thread(self._put_one_by_one, "single"),
            self._thread(self._put_many, "many"),
            self._thread(self._put_soon, "soon"),
            self._thread(self._put_jobs, "boss"),
        ]
        self._readers = [
            self._thread(self._iterate, "reader"),
            self._thread(self._get, "getter"),
            self._thread(self._work, "worker1"),
            self._thread(self._work, "worker2"),
        ]

    def _thread(self, work: Callable[[tidings.Bus], None], name: str) -> threading.Thread:
        def run() -> None:
            try:
                with tidings.connect(self._address(), name, timeout=1.0, retries=60) as bus:
                    work(bus)
            except BaseException as error:
                with self._changed:
                    self.failures.append(error)
                    self._changed.notify_all()
                raise

        return threading.Thread(target=run, name=name)

    def __enter__(self) -> Self:
        for thread in self._publishers + self._readers:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Lets the publishers end, and the subscribers come to the end of what was published."""
        self._stop.set()
        for thread in self._publishers:
            thread.join(JOIN_SECONDS_MAX)
        if kind is None and not self.failures:
            with tidings.connect(self._address(), "auditor", timeout=1.0, retries=60) as bus:
                self._ends = {topic.name: topic.next_offset for topic in bus.topics()}
        else:
            self._ends = {NEWS: 0, JOBS: 0}
        for thread in self._readers:
            thread.join(JOIN_SECONDS_MAX)
        alive = [thread.name for thread in self._publishers + self._readers if thread.is_alive()]
        if kind is None:
            assert not self.failures, self.failures
            assert not alive, f"these did not end: {alive}, {self._ends}, {[len(rows) for rows in self.seen.values()]}"

    def wait_for(self, count: int) -> None:
        """Until so many more messages have been acknowledged."""
        with self._changed:
            goal = self.count + count
            assert self._changed.wait_for(lambda: self.failures or self.count >= goal, JOIN_SECONDS_MAX), "no acks"
        assert not self.failures, self.failures

    def wait_for_probe(self, moment: float) -> None:
        """Until the publisher whose acknowledgements are timed has had one for a put that it made after a moment.

        That is the second: the first may have been under way already.
        """
        with self._changed:
            came = self._changed.wait_for(
                lambda: self.failures or self.acknowledged_at[-2:-1] > [moment], JOIN_SECONDS_MAX
            )
        assert came and not self.failures, self.failures

    @property
    def count(self) -> int:
        """Messages that have been acknowledged."""
        return sum(map(len, self.offsets.values()))

    # Publishers.

    def _add(self, topic: str, rows: list[tuple[str, int | None]]) -> None:
        with self._changed:
            for value, offset in rows:
                assert value not in self.offsets[topic]
                self.offsets[topic][value] = offset
            self._changed.notify_all()

    def _put_one_by_one(self, bus: tidings.Bus) -> None:
        count = 0
        while not self._stop.is_set():
            value = f"{bus.client_id}:{count}"
            receipt = bus.put(NEWS, value)
            if bus.client_id == "probe":
                self.acknowledged_at.append(time.monotonic())
            self._add(NEWS, [(value, receipt.offset)])
            count += 1

    def _put_many(self, bus: tidings.Bus) -> None:
        count = 0
        while not self._stop.is_set():
            values = [f"many:{number}" for number in range(count, count + self._batch)]
            receipts = bus.put_many(NEWS, values)
            assert receipts.count == self._batch
            self._add(NEWS, [(value, None) for value in values])
            count += self._batch

    def _put_soon(self, bus: tidings.Bus) -> None:
        count = 0
        while not self._stop.is_set():
            values = [f"soon:{number}" for number in range(count, count + SOON)]
            puts = [bus.put_soon(NEWS, value) for value in values]
            self._add(NEWS, [(value, put.result().offset) for value, put in zip(values, puts, strict=True)])
            count += SOON

    def _put_jobs(self, bus: tidings.Bus) -> None:
        count = 0
        while not self._stop.is_set():
            value = f"boss:{count}"
            self._add(JOBS, [(value, bus.put(JOBS, value, key=f"lane{count % LANES}").offset)])
            count += 1

    # Subscribers.

    def _reads_on(self, topic: str, count: int) -> bool:
        return not self.failures and (self._ends is None or count < self._ends[topic])

    def _iterate(self, bus: tidings.Bus) -> None:
        seen, subscription = self.seen[NEWS], bus.subscribe(NEWS, start="earliest")
        while self._reads_on(NEWS, len(seen)):
            for message in subscription.messages(timeout=0.2):
                seen.append((message.offset, message.text))

    def _get(self, bus: tidings.Bus) -> None:
        """Costs a round for each message, so it reads the smaller topic."""
        seen = self.seen[JOBS]
        bus.subscribe(JOBS, start="earliest")
        while self._reads_on(JOBS, len(seen)):
            message = bus.get(JOBS, timeout=0.2)
            if message is not None:
                assert not message.redelivered
                seen.append((message.offset, message.text))

    def _work(self, bus: tidings.Bus) -> None:
        jobs = bus.subscribe(JOBS, group="workers")
        while self._reads_on(JOBS, len({row.value for row in self.handled})):
            for job in jobs.messages(timeout=0.2):
                assert job.key is not None
                self.handled.append(Handled(job.key.decode(), job.text, job.attempt))

    # The truth.

    def check(self) -> None:
        """Nothing acknowledged is lost, nothing comes twice, the order of each publisher holds."""
        for topic, rows in self.seen.items():
            check_subscriber(self.offsets[topic], rows)
        check_jobs(self.offsets[JOBS], self.handled)


def check_subscriber(offsets: dict[str, int | None], rows: list[tuple[int, str]]) -> None:
    """One subscriber has seen what was acknowledged, and nothing else: every put came to its end."""
    values = [value for _, value in rows]
    assert [offset for offset, _ in rows] == list(range(len(rows))), "an offset came twice or not at all"
    assert len(set(values)) == len(values), "a value came twice"
    assert not offsets.keys() - set(values), "an acknowledged value is missing"
    assert not set(values) - offsets.keys(), "a value was stored and not acknowledged"
    assert all(offsets[value] in (None, offset) for offset, value in rows), "a value is not where it was acknowledged"
    last: dict[str, int] = {}
    for value in values:
        publisher, _, number = value.partition(":")
        assert int(number) == last.get(publisher, -1) + 1, f"the order of {publisher} was broken at {value}"
        last[publisher] = int(number)


def check_jobs(offsets: dict[str, int | None], rows: list[Handled]) -> None:
    """Every message was handled; first in the order of its lane, and again only with a word about it."""
    attempts: dict[str, list[int]] = {}
    lanes: dict[str, list[int]] = defaultdict(list)
    for lane, value, attempt in rows:
        if value not in attempts:
            lanes[lane].append(int(value.partition(":")[2]))
        attempts.setdefault(value, []).append(attempt)
    assert not offsets.keys() - attempts.keys(), "an acknowledged job was lost"
    for lane, numbers in lanes.items():
        assert numbers == sorted(numbers), f"the order of {lane} was broken"
    for value, seen in attempts.items():
        assert len(set(seen)) == len(seen), f"{value} was handled twice as if for the first time: {seen}"
