"""A broker that is killed again and again under load: nothing acknowledged is lost, nothing comes twice."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import tidings
from tests.integration.broker_process import BrokerProcess, ServerProcess, StorageProcess, StoredBrokerProcess

PUBLISHERS = 4
SUBSCRIBERS = 4
TOPICS = ("news", "sport")


class Tally:
    """What the threads have seen, and a way to wait for more of it."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, int] = {}
        """value -> offset."""
        self.changed = threading.Condition()
        self.failures: list[BaseException] = []
        self.stop = threading.Event()

    def add(self, value: str, offset: int | None) -> None:
        assert offset is not None
        with self.changed:
            assert value not in self.acknowledged
            self.acknowledged[value] = offset
            self.changed.notify_all()

    def wait_for(self, more: int) -> None:
        """Until so many more puts have been acknowledged."""
        with self.changed:
            goal = len(self.acknowledged) + more
            assert self.changed.wait_for(lambda: self.failures or len(self.acknowledged) >= goal, timeout=120)
            assert not self.failures, self.failures


def publish(tally: Tally, address: str, number: int) -> None:
    """Puts one by one and in bulk; an unanswered put is sent again as the very same put."""
    rng = random.Random(number)
    topic = TOPICS[number % len(TOPICS)]
    try:
        with tidings.connect(address, f"publisher{number}", timeout=0.5, retries=100) as bus:
            count = 0
            while not tally.stop.is_set():
                values = [f"{number}:{count + index}" for index in range(rng.choice([1, 1, 1, 20]))]
                count += len(values)
                if len(values) == 1:
                    tally.add(values[0], bus.put(topic, values[0]).offset)
                else:
                    for value, pending in [(value, bus.put_soon(topic, value)) for value in values]:
                        tally.add(value, pending.result().offset)
    except BaseException as error:
        tally.failures.append(error)
        raise


def consume(tally: Tally, address: str, number: int, seen: list[tuple[int, str]], ends: dict[str, int]) -> None:
    """Reads until it has come to the end that is written into `ends`: half of the readers by get, half by iteration."""
    topic = TOPICS[number % len(TOPICS)]

    def complete() -> bool:
        return topic in ends and len(seen) >= ends[topic]

    try:
        with tidings.connect(address, f"subscriber{number}", timeout=0.5, retries=100) as bus:
            subscription = bus.subscribe(topic, start="earliest")
            while not complete() and not tally.failures:
                if number < len(TOPICS):
                    message = bus.get(topic, timeout=0.2)
                    if message is not None:
                        assert not message.redelivered
                        seen.append((message.offset, message.text))
                else:
                    for message in subscription.messages(timeout=0.2):
                        seen.append((message.offset, message.text))
    except BaseException as error:
        tally.failures.append(error)
        raise


def restart(broker: ServerProcess) -> None:
    broker.kill()
    broker.start()


def crash_again_and_again(
    broker: ServerProcess, kills: int, seed: int, crash: Callable[[random.Random], None] | None = None
) -> None:
    """`crash` kills what it likes and starts it again; without it that is the broker."""
    tally, rng = Tally(), random.Random(seed)
    seen: list[list[tuple[int, str]]] = [[] for _ in range(SUBSCRIBERS)]
    ends: dict[str, int] = {}
    with broker:
        publishers = [
            threading.Thread(target=publish, args=(tally, broker.address, number)) for number in range(PUBLISHERS)
        ]
        subscribers = [
            threading.Thread(target=consume, args=(tally, broker.address, number, seen[number], ends))
            for number in range(SUBSCRIBERS)
        ]
        threads = publishers + subscribers
        for thread in threads:
            thread.start()
        try:
            for _ in range(kills):
                tally.wait_for(rng.randint(1, 150))
                if crash is not None:
                    crash(rng)
                else:
                    restart(broker)
            tally.wait_for(50)
        finally:
            tally.stop.set()
            for thread in publishers:
                thread.join(120)
            if not tally.failures:
                with tidings.connect(broker.address, "auditor") as auditor:
                    ends.update({topic.name: topic.next_offset for topic in auditor.topics()})
            else:
                ends.update(dict.fromkeys(TOPICS, 0))
            for thread in subscribers:
                thread.join(120)
    assert not tally.failures, tally.failures
    check(tally, seen)


def check(tally: Tally, seen: list[list[tuple[int, str]]]) -> None:
    """Every subscriber saw every offset of its topic once and in order, and every acknowledged value at its offset."""
    for number, rows in enumerate(seen):
        publishers = [each for each in range(PUBLISHERS) if each % len(TOPICS) == number % len(TOPICS)]
        assert [offset for offset, _ in rows] == list(range(len(rows))), "an offset came twice or not at all"
        values = [value for _, value in rows]
        assert len(set(values)) == len(values), "a value came twice"
        expected = {
            value: offset for value, offset in tally.acknowledged.items() if int(value.partition(":")[0]) in publishers
        }
        assert expected.items() <= {value: offset for offset, value in rows}.items(), "an acknowledged value is missing"
        for publisher in publishers:
            order = [int(value.partition(":")[2]) for value in values if value.startswith(f"{publisher}:")]
            assert order == sorted(order), "the order of a publisher was broken"


def test_25_kills_under_load(tmp_path: Path) -> None:
    """Z9, Z10, Z11: kill -9 at random moments, 4 publishers, 4 subscribers."""
    crash_again_and_again(BrokerProcess(tmp_path / "data"), kills=25, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_500_kills_under_load(tmp_path: Path, seed: int) -> None:
    """Z9, Z10, Z11: twenty rounds of 25 kills."""
    crash_again_and_again(BrokerProcess(tmp_path / "data"), kills=25, seed=100 + seed)


def crash_with_storage(data: Path, kills: int, seed: int, victims: tuple[str, ...]) -> list[str]:
    """The same with the journal at a storage server; at the end its texts hold what the subscribers saw."""
    with StorageProcess(data) as storage:
        # Small segments, so that kills also meet a new segment coming to be.
        small = {"TIDINGS_SEGMENT_RECORDS_MAX": "300"}
        broker = StoredBrokerProcess(storage.address, settings=small)
        killed: list[str] = []

        def crash(rng: random.Random) -> None:
            killed.append(rng.choice(victims))
            match killed[-1]:
                case "broker":
                    restart(broker)
                case "storage":
                    restart(storage)
                case "both":
                    storage.kill()
                    broker.kill()
                    storage.start()
                    broker.start()

        crash_again_and_again(broker, kills, seed, crash)
        storage.stop()
        return killed


def texts(data: Path) -> dict[str, list[str]]:
    return {path.stem: path.read_text().splitlines() for path in (data / "topics").glob("*.txt")}


@pytest.mark.parametrize("victims", [("broker",), ("storage",), ("both",), ("broker", "storage", "both")])
def test_8_kills_of_broker_and_storage_server(tmp_path: Path, victims: tuple[str, ...]) -> None:
    """E5, Z9, Z10, Z11: whichever of the two is killed, nothing acknowledged is lost and nothing comes twice."""
    data = tmp_path / "data"
    killed = crash_with_storage(data, 8, seed=len(victims) * 10 + len(victims[0]), victims=victims)
    assert set(killed) == set(victims)
    for topic in TOPICS:
        with tidings.open(data, "auditor") as bus:
            stored = [message.text for message in bus.subscribe(topic, start="earliest").messages(timeout=0)]
        assert texts(data)[topic] == stored, "the text of a topic is not what its journal holds"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_500_kills_of_broker_and_storage_server(tmp_path: Path, seed: int) -> None:
    """E5: twenty rounds of 25 kills of either or both."""
    crash_with_storage(tmp_path / "data", 25, seed=200 + seed, victims=("broker", "storage", "both"))


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        (lambda rows: rows.append((len(rows), rows[3][1])), "came twice"),
        (lambda rows: rows.pop(), "is missing"),
        (lambda rows: rows.__setitem__(slice(0, 2), [(0, rows[1][1]), (1, rows[0][1])]), "missing|order"),
        (lambda rows: rows.insert(2, rows[2]), "offset"),
    ],
)
def test_the_check_finds_what_is_planted(planted: object, found: str) -> None:
    """A checker that cannot fail proves nothing."""
    tally = Tally()
    seen: list[list[tuple[int, str]]] = [[] for _ in range(SUBSCRIBERS)]
    for count in range(20):
        for publisher in range(PUBLISHERS):
            offset = len(seen[publisher % len(TOPICS)])
            value = f"{publisher}:{count}"
            tally.add(value, offset)
            for number in range(SUBSCRIBERS):
                if number % len(TOPICS) == publisher % len(TOPICS):
                    seen[number].append((offset, value))
    check(tally, seen)
    planted(seen[0])  # type: ignore[operator]
    with pytest.raises(AssertionError, match=found):
        check(tally, seen)
