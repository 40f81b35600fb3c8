"""What the client of a stream grants for topics of several owners is shared out among them."""

from __future__ import annotations

import random

import pytest

from tidings.node.ring.apart_streams import ApartStream
from tidings.protocols.broker.messages import Delivery, Flow, Position

TOPICS = ("a", "b", "c")


def granting(messages: int, size_bytes: int = 1 << 20, stream: int = 1) -> Flow:
    return Flow(7, "ann", 1, TOPICS, stream, (Position("a", 5),), messages, size_bytes)


def limits(flows: list[Flow]) -> list[int]:
    return [flow.messages for flow in flows]


def test_a_grant_is_shared_out_and_every_part_has_room_for_one() -> None:
    flows = ApartStream(granting(0), None).grant(granting(90))
    assert [(flow.topics, flow.whole, flow.messages) for flow in flows] == [((each,), TOPICS, 30) for each in TOPICS]
    assert [flow.positions for flow in flows] == [(Position("a", 5),), (), ()]
    assert limits(ApartStream(granting(0), None).grant(granting(1))) == [1, 1, 1]


def test_nothing_is_granted_before_the_client_grants_something() -> None:
    assert limits(ApartStream(granting(0), None).grant(granting(0, 0))) == [0, 0, 0]


def test_a_part_that_has_used_half_of_its_share_gets_its_share_of_what_is_left() -> None:
    stream = ApartStream(granting(0), None)
    stream.grant(granting(90))
    assert stream.count(Delivery(1, "a", 5, 5, 10, 1), 50) is None
    more = stream.count(Delivery(1, "a", 10, 10, 25, 1), 150)
    assert more is not None
    assert (more.request, more.topics, more.messages) == (0, ("a",), 20 + 24)
    assert more.positions == (Position("a", 25),)


def test_what_is_passed_over_costs_nothing() -> None:
    stream = ApartStream(granting(0), None)
    stream.grant(granting(3))
    assert stream.count(Delivery(1, "b", 0, 9, 9, 1), 0) is None
    assert limits(stream.grant(granting(3))) == [1, 1, 1]


@pytest.mark.parametrize("seed", range(20))
def test_no_part_starves_and_the_client_is_not_flooded(seed: int) -> None:
    """As the client does it: it grants again when half has been used. Some parts have much, and some nothing."""
    rng = random.Random(seed)
    credit = rng.choice((1, 2, 5, 100))
    stream = ApartStream(granting(0), None)
    left = {topic: rng.choice((0, 3, 200)) for topic in TOPICS}
    limit, counted, buffered, sent = credit, 0, 0, dict.fromkeys(TOPICS, 0)
    granted = {flow.topics[0]: flow.messages for flow in stream.grant(granting(limit))}
    for _ in range(20_000):
        ready = [topic for topic in TOPICS if left[topic] and sent[topic] < granted[topic]]
        if ready and rng.random() < 0.7:
            topic = rng.choice(ready)
            count = rng.randint(1, min(left[topic], granted[topic] - sent[topic]))
            flow = stream.count(Delivery(1, topic, sent[topic], sent[topic], sent[topic] + count, 1), 10 * count)
            left[topic] -= count
            sent[topic] += count
            counted += count
            buffered += count
            if flow is not None:
                granted[topic] = flow.messages
        elif buffered:
            buffered -= 1
            wanted = counted + max(0, credit - buffered)
            if wanted - limit >= credit // 2:
                limit = max(limit, wanted)
                granted.update((flow.topics[0], flow.messages) for flow in stream.grant(granting(limit)))
        elif not ready:
            break
        assert buffered <= 2 * credit + len(TOPICS)
    assert not any(left.values())
