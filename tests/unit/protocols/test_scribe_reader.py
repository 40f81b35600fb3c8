"""Offsets, gaps and order at the subscriber (P12): once, in order, whatever the tree does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.protocols.circle import told
from tidings.protocols.scribe import NOW, MessageDelivered, MessagesMissed
from tidings.protocols.scribe.reader import Reader
from tidings.protocols.stack import Effect

GAP_MS, RETRY_MS = 300, 2_000


def reader(start: int = 0, held_max: int = 100) -> Reader:
    return Reader("news", start, held_max)


def offsets(effects: list[Effect]) -> list[int]:
    return [news.offset for news in told(effects, MessageDelivered)]


def body(offset: int) -> bytes:
    return str(offset).encode()


def test_messages_in_order_are_delivered_at_once() -> None:
    assert offsets(reader().on_messages(0, 0, (b"0", b"1"))) == [0, 1]


def test_a_repeated_message_is_not_delivered_again() -> None:
    one = reader()
    one.on_messages(0, 0, (b"0", b"1"))
    assert offsets(one.on_messages(0, 0, (b"0", b"1", b"2"))) == [2]


def test_an_overtaking_message_waits() -> None:
    one = reader()
    assert one.on_messages(0, 1, (b"1",)) == []
    assert offsets(one.on_messages(0, 0, (b"0",))) == [0, 1]


def test_a_gap_is_fetched_when_it_lasts() -> None:
    one = reader()
    one.on_messages(100, 1, (b"1",))
    assert one.wants(100 + GAP_MS - 1, GAP_MS, RETRY_MS) is None
    assert one.wants(100 + GAP_MS, GAP_MS, RETRY_MS) == 0


def test_the_loss_of_the_last_message_is_noticed_by_the_parents_word() -> None:
    one = reader()
    one.on_messages(0, 0, (b"0",))
    assert one.wants(10_000, GAP_MS, RETRY_MS) is None
    one.learn_end(10_000, 2)
    assert one.wants(10_000 + GAP_MS, GAP_MS, RETRY_MS) == 1


def test_a_fetch_is_not_repeated_before_its_time() -> None:
    one = reader()
    one.learn_end(0, 5)
    one.asked_ms = 1_000
    assert one.wants(1_000 + RETRY_MS - 1, GAP_MS, RETRY_MS) is None
    assert one.wants(1_000 + RETRY_MS, GAP_MS, RETRY_MS) == 0


def test_what_was_fetched_closes_the_gap() -> None:
    one = reader()
    one.on_messages(0, 2, (b"2",))
    assert offsets(one.on_fetched(0, 0, (b"0", b"1"), 3)) == [0, 1, 2]
    assert one.gap_since_ms is None


def test_what_nobody_keeps_any_more_is_said_to_be_missed() -> None:
    one = reader()
    effects = one.on_fetched(0, 5, (b"5",), 6)
    assert told(effects) == [MessagesMissed("news", 0, 5), MessageDelivered("news", 5, b"5")]


def test_who_starts_now_asks_where_now_is() -> None:
    one = reader(NOW)
    assert one.wants(0, GAP_MS, RETRY_MS) == NOW
    assert one.on_messages(0, 7, (b"7",)) == []
    assert offsets(one.on_fetched(0, 7, (), 7)) == [7]
    assert offsets(one.on_messages(0, 8, (b"8",))) == [8]


def test_what_is_held_is_bounded_and_fetched_again() -> None:
    one = reader(held_max=3)
    one.on_messages(0, 1, tuple(body(offset) for offset in range(1, 20)))
    assert offsets(one.on_messages(0, 0, (b"0",))) == [0, 1, 2, 3]
    assert one.wants(GAP_MS, GAP_MS, RETRY_MS) == 4


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5), st.booleans()), max_size=60), st.integers(1, 10))
def test_any_order_is_put_right(pieces: list[tuple[int, int, bool]], held_max: int) -> None:
    one = reader(held_max=held_max)
    delivered: list[Effect] = []
    for now_ms, (first, count, from_root) in enumerate(pieces):
        payloads = tuple(body(offset) for offset in range(first, first + count))
        if from_root and one.next_offset is not None and first <= one.next_offset:
            delivered += one.on_fetched(now_ms, first, payloads, first + count)
        else:
            delivered += one.on_messages(now_ms, first, payloads)
    news = told(delivered, MessageDelivered)
    assert [message.offset for message in news] == list(range(len(news)))
    assert all(message.payload == body(message.offset) for message in news)
