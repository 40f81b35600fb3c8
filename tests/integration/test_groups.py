"""Members of groups as people use them: the tables of the document on competing consumers, on real brokers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import pytest

import tidings
from tests.integration.conftest import House, ServedHouse
from tidings.cli import main

Build = Callable[..., House]
T = TypeVar("T")

LEASE_MS = 1_000
"""Short, because some members lose it here; and long enough for the beats of the others on a machine that is busy."""
PATIENCE_S = 60.0
"""For what has to come, however busy the machine is."""
TWO_LANES = [(f"p{number % 2}", f"p{number % 2}-{number // 2}") for number in range(10)]
QUICK = {"beat_ms": 50}


def publish(bus: tidings.Bus, pairs: list[tuple[str, str]], topic: str = "jobs") -> None:
    bus.put_many(topic, [value for _, value in pairs], keys=[key for key, _ in pairs])


def lane(number: int, count: int = 5) -> list[str]:
    return [f"p{number}-{index}" for index in range(count)]


def drain(jobs: tidings.GroupSubscription, count: int) -> list[str]:
    """Everything that comes until so many have come and no more follow."""
    return [message.text for part in looped(lambda: list(jobs.messages(timeout=0.3)), count) for message in part]


def looped(loop: Callable[[], list[T]], count: int) -> Iterator[list[T]]:
    """What comes out of a loop that ends when nothing more comes; it begins again until so many have come."""
    deadline, found = time.monotonic() + PATIENCE_S, 0
    while True:
        part = loop()
        found += len(part)
        yield part
        if found >= count or time.monotonic() > deadline:
            return


def take(jobs: tidings.GroupSubscription, count: int) -> list[tidings.Message]:
    """Acks so many messages, one after the other."""
    found: list[tidings.Message] = []
    while len(found) < count:
        message = jobs.get(timeout=PATIENCE_S)
        assert message is not None, f"{len(found)} messages came instead of {count}"
        jobs.ack(message)
        found.append(message)
    return found


def drain_both(one: tidings.GroupSubscription, two: tidings.GroupSubscription, count: int) -> tuple[list[str], ...]:
    """What comes to two members that share so many in a way that nobody can foretell."""
    found: tuple[list[str], list[str]] = ([], [])
    deadline = time.monotonic() + PATIENCE_S
    while True:
        for before, more in zip(found, together(lambda: drain(one, 0), lambda: drain(two, 0)), strict=True):
            before += more
        if sum(map(len, found)) >= count or time.monotonic() > deadline:
            return found


def slowly(jobs: tidings.GroupSubscription, work_ms: int) -> list[int]:
    """Works that long on each message, and waits even longer for others; the attempts of what came."""
    attempts = []
    for message in jobs.messages(timeout=1.5 * work_ms / 1000):
        attempts.append(message.attempt)
        time.sleep(work_ms / 1000)  # This is the long work.
    return attempts


def abandon(bus: Any) -> None:
    """The member's process dies: no beat and no goodbye ever come again."""
    if bus._heartbeat is not None:
        bus._heartbeat.stop()
        bus._heartbeat = None
    bus._driver.close()


def together(*tasks: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(tasks)) as pool:
        return [future.result() for future in [pool.submit(task) for task in tasks]]


def members_of(house: House, *names: str, topic: str = "jobs", **options: Any) -> list[tidings.GroupSubscription]:
    """Members whose streams are open, so that what is put now is shared among all of them."""
    found = []
    for name in names:
        jobs = house.connect(name, **QUICK, **options).subscribe(topic, group="workers")
        assert jobs.get() is None
        found.append(jobs)
    return found


def test_publishing_first_waits_for_the_first_member(house: House) -> None:
    """C5, table 1: publishing before anybody subscribes loses nothing."""
    publish(house.connect("publisher"), TWO_LANES)
    (ann,) = (house.connect("ann").subscribe("jobs", group="workers"),)
    assert drain(ann, 10) == [value for _, value in TWO_LANES]


def test_two_lanes_are_shared_by_two_members(house: House) -> None:
    """C3, C4, C12, tables 1, 3 and 9: 10 messages in 2 partitions, 2 subscribers; each has one whole and in order."""
    ann, bob = members_of(house, "ann", "bob")
    publish(house.connect("publisher"), TWO_LANES)
    assert sorted(together(lambda: drain(ann, 5), lambda: drain(bob, 5))) == [lane(0), lane(1)]


def test_a_thousand_messages_arrive_partitioned(house: House) -> None:
    """C3, C6, table 1: 1,000 messages, 2 subscribers, 2 partitions."""
    ann, bob = members_of(house, "ann", "bob")
    publish(house.connect("publisher"), [(f"p{n % 2}", f"p{n % 2}-{n // 2}") for n in range(1_000)])
    assert sorted(together(lambda: drain(ann, 500), lambda: drain(bob, 500))) == [lane(0, 500), lane(1, 500)]


@pytest.mark.parametrize("topics", [("jobs",), ("jobs", "errands")])
def test_five_lanes_of_one_message_for_five_members(house: House, topics: tuple[str, ...]) -> None:
    """C3, C4, table 3: each of 5 members gets a lane, on one topic and on two at the same time."""
    names = [f"member{number}" for number in range(5)]
    members = [jobs for topic in topics for jobs in members_of(house, *[f"{topic}-{n}" for n in names], topic=topic)]
    bus = house.connect("publisher")
    for topic in topics:
        publish(bus, [(f"k{number}", f"{topic}{number}") for number in range(5)], topic)
    found = together(*[lambda jobs=jobs: drain(jobs, 1) for jobs in members])
    assert [len(each) for each in found] == [1] * len(members)
    assert sorted(value for each in found for value in each) == sorted(f"{t}{n}" for t in topics for n in range(5))


def test_topics_and_groups_show_up_at_once(house: House) -> None:
    """C2, table 2: two topics, then all three; and the groups with their members."""
    bus = house.connect("publisher")
    bus.put("one", "x")
    bus.put("two", "x")
    assert [info.name for info in bus.topics()] == ["one", "two"]
    house.connect("ann").subscribe("three", group="workers")
    assert [info.name for info in bus.topics()] == ["one", "three", "two"]
    (group,) = bus.groups("three")
    assert (group.name, group.topic, [member.name for member in group.members]) == ("workers", "three", ["ann"])
    assert bus.groups("one") == []


def test_a_late_member_gets_lanes_at_once(house: House) -> None:
    """C5: two of four lanes are in the first member's hands; the other comes and gets the rest, in order."""
    pairs = [(f"p{number % 4}", f"p{number % 4}-{number // 4}") for number in range(12)]
    publish(house.connect("publisher"), pairs)
    ann = house.connect("ann", room_messages=2, **QUICK).subscribe("jobs", group="workers")
    first = ann.get(timeout=PATIENCE_S)
    assert first is not None
    bob = house.connect("bob", **QUICK).subscribe("jobs", group="workers")
    theirs = bob.get(timeout=PATIENCE_S)
    assert theirs is not None, "without waiting for ann to do anything"
    bob.ack(theirs)
    ann.ack(first)
    mine, others = drain_both(ann, bob, len(pairs) - 2)
    everything = [first.text, *mine, theirs.text, *others]
    assert sorted(everything) == sorted(value for _, value in pairs)
    for number in range(4):
        for part in ([first.text, *mine], [theirs.text, *others]):
            ours = [value for value in part if value.startswith(f"p{number}")]
            assert ours == sorted(ours)


def test_a_small_delay_costs_nothing(build: Build) -> None:
    """C7, table 4: 10 messages, and some take longer than the lease."""
    house = build(lease_ms=LEASE_MS)
    ann, bob = members_of(house, "ann", "bob")
    publish(house.connect("publisher"), TWO_LANES)

    def slowly(jobs: tidings.GroupSubscription) -> list[str]:
        values: list[str] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(values) < 5 and time.monotonic() < deadline:
            for message in jobs.messages(timeout=0.5):
                values.append(message.text)
                if message.text == "p0-2":
                    time.sleep(2.5 * LEASE_MS / 1000)  # The heartbeat beside this work is what is tested.
        return values

    assert sorted(together(lambda: slowly(ann), lambda: slowly(bob))) == [lane(0), lane(1)]
    assert (ann.refused, bob.refused) == (0, 0)


def test_a_member_that_closes_hands_on_what_it_has_not_done(house: House) -> None:
    """C7, table 4: one has done all its messages, the other one of five; the remaining 4 go to the first that comes."""
    ann, bob = members_of(house, "ann", "bob")
    publish(house.connect("publisher"), TWO_LANES)
    assert len(drain(ann, 5)) == 5
    mine = bob.get(timeout=PATIENCE_S)
    assert mine is not None
    bob.ack(mine)
    bob.close()
    assert drain(ann, 4) == lane(int(mine.text[1]))[1:]
    assert drain(house.connect("carol").subscribe("jobs", group="workers"), 0) == []


def test_a_member_that_leaves_and_one_whose_bus_closes_hand_on_at_once(house: House) -> None:
    """C7, C9: nobody waits for a lease after a proper goodbye."""
    ann, bob = members_of(house, "ann", "bob")
    carol_bus = house.connect("carol")
    carol = carol_bus.subscribe("jobs", group="workers")
    assert carol.get() is None
    publish(house.connect("publisher"), [(f"k{n}", str(n)) for n in range(9)])
    assert bob.get(timeout=PATIENCE_S) is not None
    bob.unsubscribe()
    assert carol.get(timeout=PATIENCE_S) is not None
    carol_bus.close()
    assert sorted(drain(ann, 9)) == [str(n) for n in range(9)]
    with pytest.raises(tidings.NotSubscribed):
        bob.unsubscribe()


def test_what_was_acked_stays_acked_when_the_broker_dies(house: House) -> None:
    """C8, table 5: 5 of 10 messages are done when the queues crash; exactly the others come, in order."""
    if not isinstance(house, ServedHouse):
        pytest.skip("an embedded broker dies with its members")
    publish(house.connect("publisher"), [("k", str(n)) for n in range(10)])
    ann = house.connect("ann", timeout=0.5, retries=100).subscribe("jobs", group="workers")
    got: list[str] = []

    def work() -> list[tidings.Message]:
        seen = []
        for message in ann.messages(timeout=1):
            seen.append(message)
            got.append(message.text)
            if message.offset == 4:
                house.restart()
        return seen

    assert sum(map(len, looped(work, 10))) == 10
    assert got == [str(n) for n in range(10)]
    assert ann.refused == 0
    assert house.connect("publisher").groups()[0].lag == 0


def test_messages_put_before_the_broker_died_come_after_it(house: House) -> None:
    """C8, table 5: 10 messages, none of them processed, and a crash at the 5th; the latter 5 are refused by name."""
    if not isinstance(house, ServedHouse):
        pytest.skip("an embedded broker dies with its publisher")
    bus = house.connect("publisher", timeout=0.3, retries=100)
    for number in range(5):
        bus.put("jobs", str(number), key="k")
    house.broker.kill()
    bus.be_patient(0.3)
    for number in range(5, 10):
        with pytest.raises(tidings.Unavailable):
            bus.put("jobs", str(number), key="k")
    house.broker.start()
    ann = house.connect("ann").subscribe("jobs", group="workers")
    assert [message.text for message in take(ann, 5)] == [str(number) for number in range(5)]
    assert ann.get() is None


def test_a_member_that_dies_hands_on_only_what_it_has_not_acked(build: Build) -> None:
    """C9, table 6: it dies in its 4th message, so the 4th and 5th go to the other, and only those."""
    house = build(lease_ms=LEASE_MS)
    ann = house.connect("ann", **QUICK).subscribe("jobs", group="workers")
    assert ann.get() is None
    doomed = house.connect("bob", **QUICK)
    bob = doomed.subscribe("jobs", group="workers")
    assert bob.get() is None
    publish(house.connect("publisher"), TWO_LANES)
    for _ in range(3):
        message = bob.get(timeout=PATIENCE_S)
        assert message is not None
        bob.ack(message)
    fourth = bob.get(timeout=PATIENCE_S)
    assert fourth is not None
    lost = int(fourth.text[1])
    assert drain(ann, 5) == lane(1 - lost), "while bob lives its work is its own"
    abandon(doomed)
    handed_on = take(ann, 2)
    assert [message.text for message in handed_on] == lane(lost)[3:]
    assert [message.attempt for message in handed_on] == [2, 2]
    assert ann.get() is None
    assert house.connect("publisher").groups()[0].lag == 0


def test_a_member_that_is_slow_three_times_loses_what_waits(build: Build) -> None:
    """C10, table 7: 10 messages, 2 partitions, 2 subscribers. After 3 delayed messages the 2 waiting ones move."""
    house = build(slow_ack_ms=400)
    ann, bob = members_of(house, "ann", "bob", room_messages=1)
    publish(house.connect("publisher"), TWO_LANES)
    own = take(ann, 5)
    for number in range(3):
        message = bob.get(timeout=PATIENCE_S)
        assert message is not None
        assert [message.text, message.attempt] == [lane(1 - int(own[0].text[1]))[number], 1]
        time.sleep(0.41)  # This is the slow work.
        bob.ack(message)
    others = take(ann, 2)
    assert [message.text for message in others] == lane(int(others[0].text[1]))[3:]
    assert [message.attempt for message in others] == [1, 1], "nobody had them before"
    assert bob.get() is None
    [group] = house.connect("publisher").groups()
    assert {each.name: (each.active, each.slow) for each in group.members} == {
        "ann": (True, False),
        "bob": (True, True),
    }, "it is still a member"
    assert group.lag == 0


def test_a_member_that_never_answers_is_sent_a_message_three_times(build: Build) -> None:
    """C9, C11, table 8: 10 messages, 2 partitions, 2 subscribers. After the third attempt the member is inactive, and
    the current message and the remaining ones go to the other. Its heartbeat alone does not save it."""
    house = build(redelivery_ms=1_000)
    ann, bob = members_of(house, "ann", "bob")
    publish(house.connect("publisher"), TWO_LANES)
    acked = bob.get(timeout=PATIENCE_S)
    assert acked is not None
    bob.ack(acked)
    stuck = bob.get(timeout=PATIENCE_S)
    assert stuck is not None
    lost = int(stuck.text[1])
    assert [message.text for message in take(ann, 5)] == lane(1 - lost)
    handed_on = take(ann, 4)
    assert [message.text for message in handed_on] == lane(lost)[1:]
    assert {message.attempt for message in handed_on} == {2}, "bob may have worked on them"
    with pytest.raises(tidings.Fenced, match="given to another member"):
        bob.ack(stuck)
    assert house.connect("publisher").groups()[0].lag == 0


def test_a_handler_that_takes_longer_than_the_lease_costs_nothing(build: Build) -> None:
    """C7: the heartbeat goes on beside the work."""
    house = build(lease_ms=LEASE_MS)
    ann, bob = members_of(house, "ann", "bob")
    publish(house.connect("publisher"), [("k", "long")])
    assert together(lambda: slowly(ann, 2 * LEASE_MS), lambda: slowly(bob, 2 * LEASE_MS)) in ([[1], []], [[], [1]])
    assert (ann.refused, bob.refused) == (0, 0)
    assert house.connect("publisher").groups()[0].lag == 0


def test_a_late_acknowledgement_is_refused_and_says_so(build: Build) -> None:
    """C9: the work went to another member meanwhile. A loop counts what was refused."""
    house = build(lease_ms=LEASE_MS)
    mute = house.connect("bob", beat_ms=100_000)
    bob = mute.subscribe("jobs", group="workers")
    publish(house.connect("publisher"), [("k", "one"), ("k", "two")])
    one = bob.get(timeout=PATIENCE_S)
    assert one is not None
    (ann,) = members_of(house, "ann")
    taken = ann.get(timeout=PATIENCE_S)
    assert taken is not None
    assert (taken.text, taken.attempt, taken.redelivered) == ("one", 2, True)
    with pytest.raises(tidings.Fenced, match="given to another member"):
        bob.ack(one)
    ann.ack(taken)
    assert drain(ann, 1) == ["two"]
    assert bob.get() is None, "the session itself goes on"


def test_a_loop_skips_and_counts_what_went_to_others(build: Build) -> None:
    """C9."""
    house = build(lease_ms=LEASE_MS)
    bob = house.connect("bob", beat_ms=100_000).subscribe("jobs", group="workers")
    publish(house.connect("publisher"), [("k", "one"), ("k", "two")])
    seen: list[str] = []
    while not seen:
        for message in bob.messages(timeout=0.5):
            seen.append(message.text)
            if message.text == "one":
                (ann,) = members_of(house, "ann")
                assert drain(ann, 2) == ["one", "two"]
    assert seen == ["one"] or seen == ["one", "two"]
    assert bob.refused == len(seen)


def test_a_message_given_back_comes_again_in_order_and_not_too_early(house: House) -> None:
    """C11: nack with a delay; what is behind it in its lane waits too, other lanes do not."""
    (ann,) = members_of(house, "ann")
    publish(house.connect("publisher"), [("k", "one"), ("k", "two"), ("other", "three")])
    one = ann.get(timeout=PATIENCE_S)
    assert one is not None
    before = time.monotonic()
    ann.nack(one, delay=1)
    assert [message.text for message in take(ann, 1)] == ["three"]
    again = ann.get(timeout=PATIENCE_S)
    assert again is not None
    assert (again.text, again.attempt) == ("one", 2)
    assert time.monotonic() - before >= 1
    ann.ack(again)
    assert drain(ann, 1) == ["two"]
    with pytest.raises(tidings.Fenced):
        ann.ack(one)


def test_single_answers_inside_a_loop(house: House) -> None:
    (ann,) = members_of(house, "ann")
    publish(house.connect("publisher"), [("k", str(n)) for n in range(20)])
    seen = []

    def answer() -> list[tidings.Message]:
        before = len(seen)
        for message in ann.messages(timeout=0.5):
            seen.append((message.text, message.attempt))
            if message.text == "3":
                ann.ack(message)
            if message.text == "5" and message.attempt == 1:
                ann.nack(message)
            ann.extend(message) if message.text == "7" else None
        return seen[before:]

    assert sum(map(len, looped(answer, 21))) == 21
    texts = [text for text, _ in seen]
    assert texts == [str(n) for n in [0, 1, 2, 3, 4, 5, 5, *range(6, 20)]]
    assert ann.refused == 0


def test_the_same_messages_again_are_dropped(house: House) -> None:
    """C13, table 10: by their ids; again, with one new message, and after every member has left."""
    ann, bob = members_of(house, "ann", "bob")
    bus = house.connect("publisher")

    def everything(extra: tuple[str, ...] = ()) -> list[bool]:
        return [bus.put("jobs", v, key=v[:2], id=v).duplicate for v in [*[v for _, v in TWO_LANES], *extra]]

    assert everything() == [False] * 10
    assert sorted(together(lambda: drain(ann, 5), lambda: drain(bob, 5))) == [lane(0), lane(1)]
    assert everything() == [True] * 10
    assert everything(("p0-new",)) == [True] * 10 + [False]
    assert sorted(drain_both(ann, bob, 1)) == [[], ["p0-new"]]
    ann.unsubscribe()
    bob.unsubscribe()
    assert everything() == [True] * 10
    assert drain(house.connect("carol").subscribe("jobs", group="workers"), 0) == []


def test_a_message_out_of_order_is_not_taken(house: House) -> None:
    """C12: order is by the publisher's sequence numbers, and a gap is refused."""
    with house.connect("alice").publisher("import") as publisher:
        publisher.put("jobs", "one", sequence=1)
        with pytest.raises(tidings.OutOfSequence):
            publisher.put("jobs", "three", sequence=3)
        publisher.put("jobs", "two", sequence=2)
        publisher.put("jobs", "three", sequence=3)
    assert drain(house.connect("ann").subscribe("jobs", group="workers"), 3) == ["one", "two", "three"]


def test_the_1001st_message_is_refused_or_waits(build: Build) -> None:
    """C6, table 1: nothing is dropped in silence."""
    house = build(max_backlog=1_000)
    (ann,) = members_of(house, "ann")
    bus = house.connect("publisher")
    bus.put_many("jobs", [str(n) for n in range(1_000)])
    with pytest.raises(tidings.Overloaded):
        bus.put("jobs", "one too many")
    with pytest.raises(tidings.Overloaded):
        bus.put("jobs", "one too many", wait=0.1)
    waiting = threading.Thread(target=lambda: bus.put("jobs", "patient", wait=PATIENCE_S))
    waiting.start()
    values = drain(ann, 1_001)
    waiting.join()
    assert values == [*[str(n) for n in range(1_000)], "patient"]


def test_many_messages_wait_for_room(build: Build) -> None:
    """C6, table 1: 10,000 messages where 1,000 have room. The first 1,000 are stored, and an error says so.

    The remaining 9,000 are not dropped but come when there is room, once and in order.
    """
    house = build(max_backlog=1_000)
    (ann,) = members_of(house, "ann")
    bus = house.connect("publisher")
    values, keys = [str(n) for n in range(10_000)], [str(n % 7) for n in range(10_000)]
    with pytest.raises(tidings.Overloaded) as refused:
        bus.put_many("jobs", values, keys=keys, wait=0.3)
    stored = refused.value.receipts  # type: ignore[attr-defined]
    assert (stored.topic, stored.first_offset, stored.count) == ("jobs", 0, 1_000)

    def publish_the_rest() -> tidings.Receipts:
        return bus.put_many("jobs", values[1_000:], keys=iter(keys[1_000:]), wait=PATIENCE_S)

    def work() -> list[str]:
        return [message.text for message in islice(ann.messages(timeout=PATIENCE_S), 10_000)]

    rest, seen = together(publish_the_rest, work)
    assert (rest.count, rest.first_offset) == (9_000, 1_000)
    for key in range(7):
        assert [n for n in map(int, seen) if n % 7 == key] == list(range(key, 10_000, 7))
    with pytest.raises(tidings.InvalidRequest, match="fewer keys"):
        bus.put_many("jobs", ["a", "b"], keys=["k"], wait=1)
    with pytest.raises(tidings.InvalidRequest, match="more keys"):
        bus.put_many("jobs", ["a", "b"], keys=["k", "k", "k"], wait=1)


def test_handlers_are_called_and_a_failed_message_comes_again(house: House) -> None:
    """C1: push; a handler that raises gives the message back, and the error comes out of run."""
    bus = house.connect("ann", **QUICK)
    seen: list[tuple[str, int]] = []

    @bus.on("jobs", group="workers")
    def work(message: tidings.Message) -> None:
        seen.append((message.text, message.attempt))
        if message.text == "bad" and message.attempt == 1:
            raise RuntimeError("no")
        if message.text == "last":
            bus.stop()

    publish(house.connect("publisher"), [("k", "good"), ("k", "bad"), ("k", "last")])
    with pytest.raises(RuntimeError, match="no"):
        bus.run(timeout=PATIENCE_S)
    bus.run(timeout=PATIENCE_S)
    assert [text for text, _ in seen] == ["good", "bad", "bad", "last"]
    assert [attempt for _, attempt in seen][:3] == [1, 1, 2]
    bus.close()
    assert house.connect("publisher").groups()[0].lag == 0


def test_the_error_of_a_handler_comes_out_also_when_the_broker_is_gone(house: House) -> None:
    """C1: giving the messages back is tried for one time-out, and hides nothing."""
    if not isinstance(house, ServedHouse):
        pytest.skip("an embedded broker dies with its members")
    bus = house.connect("ann", timeout=0.3, retries=100)
    broker = house.broker

    @bus.on("jobs", group="workers")
    def work(message: tidings.Message) -> None:
        broker.kill()
        bus.be_patient(0.6)
        raise RuntimeError(message.text)

    @bus.on("errands", group="workers")
    def run_errands(message: tidings.Message) -> None:
        raise AssertionError(message)

    publish(house.connect("publisher"), [("k", "only")])
    with pytest.raises(RuntimeError, match="only"):
        bus.run(timeout=PATIENCE_S)
    broker.start()
    again = house.connect("bob").subscribe("jobs", group="workers")
    bus.close()
    assert [message.text for message in take(again, 1)] == ["only"]


def test_what_was_fetched_in_advance_goes_back_when_run_returns(house: House) -> None:
    """C7: the client goes on, and so does its membership; others get at once what no handler has seen."""
    bus = house.connect("ann", **QUICK)
    seen: list[str] = []

    @bus.on("jobs", group="workers")
    def work(message: tidings.Message) -> None:
        seen.append(message.text)
        if len(seen) == 3 or message.text == "later":
            bus.stop()

    publish(house.connect("publisher"), [("k", str(n)) for n in range(10)])
    bus.run()
    bob = house.connect("bob", **QUICK).subscribe("jobs", group="workers")
    others = take(bob, 7)
    assert [*seen, *[message.text for message in others]] == [str(n) for n in range(10)]
    assert {message.attempt for message in others} == {1}, "nobody had looked at them"
    publish(house.connect("publisher"), [("k", "later")])
    bob.close()
    seen.clear()
    bus.run(timeout=PATIENCE_S)
    assert seen == ["later"], "it is still a member"


def test_what_was_fetched_in_advance_goes_back_when_a_member_closes(house: House) -> None:
    """C7: also what was on its way to it; only what it has looked at counts as an attempt."""
    bus = house.connect("ann", **QUICK)
    ann = bus.subscribe("jobs", group="workers")
    publish(house.connect("publisher"), [("k", str(n)) for n in range(5)])
    first = ann.get(timeout=PATIENCE_S)
    assert first is not None
    ann.close()
    bob = house.connect("bob", **QUICK).subscribe("jobs", group="workers")
    assert [(message.text, message.attempt) for message in take(bob, 5)] == [
        ("0", 2),
        ("1", 1),
        ("2", 1),
        ("3", 1),
        ("4", 1),
    ]
    with pytest.raises(tidings.Fenced):
        ann.ack(first)


def test_shares_are_acked_as_one(house: House) -> None:
    """C3: columns of values, keys and offsets, for anyone who works in bulk."""
    ann, bob = members_of(house, "ann", "bob")
    publish(house.connect("publisher"), TWO_LANES)
    shares = [
        share
        for jobs in (ann, bob)
        for part in looped(lambda jobs=jobs: list(jobs.batches(timeout=0.2)), 1)
        for share in part
    ]
    assert sorted(offset for share in shares for offset in share.offsets) == list(range(10))
    for share in shares:
        assert [message.offset for message in share] == list(share.offsets)
        assert len(set(share.keys)) == 1
    assert house.connect("publisher").groups()[0].lag == 0


def test_a_message_in_flight_when_a_loop_ends_comes_again(house: House) -> None:
    (ann,) = members_of(house, "ann")
    publish(house.connect("publisher"), [("k", str(n)) for n in range(5)])
    for message in ann:
        if message.text == "2":
            break
    assert drain(ann, 3) == ["2", "3", "4"]


def test_lanes_of_publishers(house: House) -> None:
    """C3: with lanes="publisher" the same key of two publishers is two lanes."""
    ann = house.connect("ann", **QUICK).subscribe("jobs", group="workers", lanes="publisher")
    assert ann.get() is None
    (bob,) = members_of(house, "bob")
    for name in ("first", "second"):
        publish(house.connect(name), [("k", f"{name}-{n}") for n in range(3)])
    found = sorted(together(lambda: drain(ann, 3), lambda: drain(bob, 3)))
    assert found == [[f"{name}-{n}" for n in range(3)] for name in ("first", "second")]


def test_the_heartbeat_goes_on_over_an_encrypted_connection(tmp_path: Path) -> None:
    """C7, C9: with keys the second connection has to show its key as well."""
    keys = tmp_path / "keys"
    for arguments in (["keys", str(keys)], *(["keys", str(keys), "--client", name] for name in ("ann", "bob", "eve"))):
        assert main(arguments) == 0
    house = ServedHouse(tmp_path / "data", keys=keys, lease=f"{LEASE_MS}ms")
    try:
        ann, bob = members_of(house, "ann", "bob", keys=keys)
        eve = house.connect("eve", keys=keys)
        publish(eve, [("k", "long")])
        assert together(lambda: slowly(ann, 2 * LEASE_MS), lambda: slowly(bob, 2 * LEASE_MS)) in ([[1], []], [[], [1]])
        assert (ann.refused, bob.refused) == (0, 0)
        assert eve.groups()[0].lag == 0
    finally:
        house.close()


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    for _ in range(1_500):
        if not any(thread.name == "tidings-heartbeat" for thread in threading.enumerate()):
            return
        time.sleep(0.02)
    raise AssertionError("a heartbeat goes on after its bus was closed")


def test_the_awaiting_bus_is_a_member_like_any_other(house: House) -> None:
    """C1, C3: the same operations on an event loop; a handler that waits long does not lose its lease."""
    if not isinstance(house, ServedHouse):
        pytest.skip("the awaiting bus needs a broker process")
    publish(house.connect("publisher"), [("k", str(n)) for n in range(6)])
    seen: list[str] = []

    async def main() -> None:
        async with await tidings.aconnect(house.broker.address, "ann") as bus:
            async with await bus.subscribe("jobs", group="workers") as jobs:
                assert jobs.topics == ("jobs",)
                first = await jobs.get(timeout=PATIENCE_S)
                assert first is not None
                await jobs.extend(first)
                await jobs.nack(first)
                again = await jobs.get(timeout=PATIENCE_S)
                assert again is not None
                assert (again.text, again.attempt) == ("0", 2)
                await jobs.ack(again)
                async for message in jobs.messages(timeout=PATIENCE_S):
                    seen.append(message.text)
                    if message.text == "3":
                        break

            @bus.on("jobs", group="workers")
            async def work(message: tidings.Message) -> None:
                seen.append(message.text)
                if message.text == "5":
                    bus.stop()

            await bus.run(timeout=PATIENCE_S)
            assert (await bus.groups())[0].lag == 0
            await bus.unsubscribe("jobs", group="workers")

    asyncio.run(main())
    assert seen == ["1", "2", "3", "3", "4", "5"]
