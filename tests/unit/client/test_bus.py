"""The blocking bus over a fake link with a small broker behind it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.client.peer import SmallBroker
from tidings.client.bus import Bus
from tidings.client.filling import PIECE_MESSAGES_MAX
from tidings.errors import (
    Fenced,
    InvalidRequest,
    InvalidTopic,
    LimitReached,
    MessageTooLarge,
    NoSuchTopic,
    NotSubscribed,
    OutOfSequence,
    Unavailable,
)
from tidings.message import Message, Receipt, Receipts
from tidings.protocols.broker import messages as m
from tidings.settings import ClientSettings

NEWS = ("news",)
PATIENCE = ClientSettings(timeout_ms=100)


@pytest.fixture
def broker() -> SmallBroker:
    return SmallBroker()


@pytest.fixture
def bus(broker: SmallBroker) -> Iterator[Bus]:
    opened = Bus(broker, "alice", PATIENCE, clock=broker.clock)
    yield opened
    opened.close()


def lose(kind: type, *, only_answer: bool = False) -> Any:
    """A filter that loses every request of a kind, or only the answers to them."""
    lost = "unanswered" if only_answer else False
    return lambda request: lost if isinstance(request, kind) else True


def test_put_to_one_topic_and_to_several(bus: Bus, broker: SmallBroker) -> None:
    """Z1, Z9."""
    assert bus.put("news", "hello", key="k", headers={"a": "b"}) == Receipt("news", 0)
    assert bus.put(["news", "sport"], b"both") == [Receipt("news", 1), Receipt("sport", 0)]
    assert bus.put_many("news", ("c", "d")) == Receipts("news", 2, 2)
    assert broker.topics == {"news": [b"hello", b"both", b"c", b"d"], "sport": [b"both"]}


def test_what_can_be_refused_here_is_refused_here(bus: Bus, broker: SmallBroker) -> None:
    bus.put("news", "x")
    before = len(broker.requests)
    for topic in ("", "a\nb", "x" * 129):
        with pytest.raises(InvalidTopic):
            bus.put(topic, b"x")
    with pytest.raises(MessageTooLarge):
        bus.put("news", b"x" * (1024 * 1024 + 1))
    with pytest.raises(InvalidRequest):
        bus.put([], b"x")
    with pytest.raises(InvalidRequest):
        bus.put("news", 7)  # type: ignore[call-overload]
    with pytest.raises(InvalidRequest):
        bus.get("news", timeout=-1)
    with pytest.raises(InvalidRequest):
        bus.subscribe("news", start="yesterday")  # type: ignore[call-overload]
    assert len(broker.requests) == before


def test_get_acknowledges_before_it_returns(bus: Bus, broker: SmallBroker) -> None:
    """Z6, Z7."""
    bus.subscribe("news")
    assert bus.get("news") is None
    broker.add("news", b"a", b"b")
    message = bus.get("news")
    assert isinstance(message, Message)
    assert (message.text, message.offset, message.redelivered) == ("a", 0, False)
    assert broker.cursors[NEWS] == {"news": 1}
    assert bus.get("news", timeout=5).text == "b"  # type: ignore[union-attr]
    assert bus.get("news") is None


def test_get_without_subscription_or_topic(bus: Bus, broker: SmallBroker) -> None:
    """Z6."""
    with pytest.raises(NoSuchTopic):
        bus.get("news")
    broker.add("news", b"a")
    with pytest.raises(NotSubscribed):
        bus.get("news")
    bus.subscribe("news", start="earliest")
    assert bus.get("news").text == "a"  # type: ignore[union-attr]


def test_a_get_that_waits_stops_waiting(bus: Bus, broker: SmallBroker) -> None:
    """Z6."""
    bus.subscribe("news")
    start_ms = broker.clock.now_ms
    assert bus.get("news", timeout=7.5) is None
    assert broker.clock.now_ms - start_ms == 7_500
    assert len(broker.asked(m.Beat)) == 3  # Meanwhile it asked every 2 s whether it is still being served.


@pytest.mark.parametrize("only_answer", [True, False])
def test_a_get_whose_acknowledgement_was_lost_gives_the_message_to_the_next_get(
    bus: Bus, broker: SmallBroker, only_answer: bool
) -> None:
    """Z10: the hole of seed 000, the broker being away for longer than the client tries."""
    bus.subscribe("news")
    broker.add("news", b"a", b"b")
    broker.filter = lose(m.Ack, only_answer=only_answer)
    with pytest.raises(Unavailable):
        bus.get("news")
    broker.filter = lambda request: True
    assert [bus.get("news").text, bus.get("news").text, bus.get("news")] == ["a", "b", None]  # type: ignore[union-attr]
    assert broker.cursors[NEWS] == {"news": 2}


def test_get_all(bus: Bus, broker: SmallBroker) -> None:
    """Z6: one message for each of the client's topics."""
    for topic in ("news", "sport", "chess"):
        bus.subscribe(topic)
    bus.subscribe(["news", "sport"])
    broker.add("news", b"n1", b"n2")
    broker.add("sport", b"s1")
    assert {topic: message.text for topic, message in bus.get_all().items()} == {"news": "n1", "sport": "s1"}
    assert {topic: message.text for topic, message in bus.get_all().items()} == {"news": "n2"}
    assert bus.get_all() == {}
    assert len(broker.asked(m.AskSubscriptions)) == 1
    bus.unsubscribe("news")
    assert bus.subscriptions() == [("sport",), ("chess",), ("news", "sport")]


@pytest.mark.parametrize("only_answer", [True, False])
def test_an_unsubscribe_with_an_unknown_outcome_is_cleared_up_before_the_subscription_is_used(
    bus: Bus, broker: SmallBroker, only_answer: bool
) -> None:
    """Z5, Z10: what was received for the old subscription is not handed out for a new one, nor lost."""
    bus.subscribe("news")
    broker.add("news", b"a", b"b")
    assert bus.get("news").text == "a"  # type: ignore[union-attr]
    broker.filter = lose(m.Unsubscribe, only_answer=only_answer)
    with pytest.raises(Unavailable):
        bus.unsubscribe("news")
    broker.filter = lambda request: True
    bus.subscribe("news")
    found = bus.get("news")
    assert (found and found.text) == (None if only_answer else "b")
    bus.unsubscribe("news")
    with pytest.raises(NotSubscribed):
        bus.unsubscribe("news")


def test_a_loop_acknowledges_when_the_next_one_is_asked_for(bus: Bus, broker: SmallBroker) -> None:
    """Z7, C1."""
    subscription = bus.subscribe("news")
    broker.add("news", b"a", b"b", b"c")
    messages = subscription.messages(timeout=0)
    assert next(messages).text == "a"
    assert broker.cursors[NEWS] == {"news": 0}
    assert next(messages).text == "b"
    assert next(messages).text == "c"
    with pytest.raises(StopIteration):
        next(messages)
    assert broker.cursors[NEWS] == {"news": 3}


def test_the_message_in_flight_when_a_loop_breaks_comes_again(bus: Bus, broker: SmallBroker) -> None:
    subscription = bus.subscribe("news")
    broker.add("news", *(b"%d" % i for i in range(500)))
    for message in subscription:
        if message.text == "300":
            break
    assert broker.cursors[NEWS] == {"news": 300}
    assert bus.get("news").text == "300"  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="mine"):
        fail_at_once(subscription)
    assert [message.offset for message in subscription.messages(timeout=0)] == list(range(301, 500))


def fail_at_once(messages: Iterable[Message]) -> None:
    for _ in messages:
        raise ValueError("mine")


def test_batches_are_acknowledged_as_one(bus: Bus, broker: SmallBroker) -> None:
    subscription = bus.subscribe("news")
    broker.add("news", b"a", b"b")
    batches = subscription.batches(timeout=0)
    assert next(batches).values == [b"a", b"b"]
    broker.add("news", b"c")
    assert broker.cursors[NEWS] == {"news": 0}
    assert next(batches).values == [b"c"]
    batches.close()  # type: ignore[attr-defined]
    assert broker.cursors[NEWS] == {"news": 2}
    assert bus.get("news").text == "c"  # type: ignore[union-attr]


def test_close_ends_a_loop(bus: Bus, broker: SmallBroker) -> None:
    subscription = bus.subscribe("news")
    broker.add("news", b"a", b"b")
    seen = []
    for message in subscription:
        seen.append(message.text)
        if message.text == "b":
            subscription.close()
    assert seen == ["a", "b"]
    assert broker.cursors[NEWS] == {"news": 2}


def test_one_target_at_a_time(bus: Bus, broker: SmallBroker) -> None:
    subscription = bus.subscribe("news")
    broker.add("news", b"a", b"b")
    for _ in subscription:
        with pytest.raises(InvalidRequest, match="loop"):
            bus.get("news")
        break
    with bus.transaction() as tx:
        tx.get("news")
        with pytest.raises(InvalidRequest, match="transaction"):
            bus.get("news")


def test_a_loop_lives_through_a_new_connection(bus: Bus, broker: SmallBroker) -> None:
    """Z8, Z4."""
    subscription = bus.subscribe("news")
    messages = subscription.messages(timeout=10)
    broker.add("news", b"a")
    assert next(messages).text == "a"
    losing = 2

    def lose_beats(request: Any) -> bool:
        nonlocal losing
        if isinstance(request, m.Beat) and losing:
            losing -= 1
            broker.topics["news"].append(b"b")  # Stored, and its delivery lost with the connection.
            broker.streams.clear()
            return False
        return True

    broker.filter = lose_beats
    assert [next(messages).text, next(messages).text] == ["b", "b"]
    assert broker.reopened == 2


def test_waiting_ends_as_unavailable_when_the_tries_are_used_up(bus: Bus, broker: SmallBroker) -> None:
    """Z8."""
    subscription = bus.subscribe("news")
    broker.filter = lambda request: isinstance(request, m.Flow) and len(broker.asked(m.Flow)) == 1
    with pytest.raises(Unavailable):
        bus.get("news", timeout=60)
    broker.filter = lambda request: False
    with pytest.raises(Unavailable):
        next(iter(subscription))
    broker.filter = lambda request: True
    broker.add("news", b"a")
    assert next(iter(subscription)).text == "a"


def test_a_fenced_loop_says_so(bus: Bus, broker: SmallBroker) -> None:
    subscription = bus.subscribe("news")
    broker.add("news", *[b"x"] * 10)
    handle = broker.handle

    def fence(request: Any, batches: Any) -> Any:
        if isinstance(request, m.Ack):
            return m.Failed(request.request, Fenced.number, "A newer session of 'alice' has taken over.")
        return handle(request, batches)

    broker.handle = fence  # type: ignore[method-assign]
    seen: list[Message] = []
    with pytest.raises(Fenced, match="newer session"):
        seen.extend(subscription)
    assert len(seen) < 10


def test_resend_of_a_put_with_an_unknown_outcome(bus: Bus, broker: SmallBroker) -> None:
    """Z9: it had been stored, so it is answered as a duplicate and stored once."""
    bus.put("news", "a")
    broker.filter = lose(m.Put, only_answer=True)
    with pytest.raises(Unavailable) as caught:
        bus.put("news", "b")
    broker.filter = lambda request: True
    resend = caught.value.resend
    assert resend() == Receipt("news", 1, True)
    assert broker.topics["news"] == [b"a", b"b"]
    assert len({(put.request, put.part) for put in broker.asked(m.Put)[1:]}) == 1
    bus.put("news", "c")
    assert broker.topics["news"] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("many", [False, True])
def test_an_interrupted_put_says_what_may_have_happened(
    bus: Bus, broker: SmallBroker, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    """Ctrl-C while it waits: a note says that it may be stored, no more values are taken, and the bus goes on."""
    bus.put("news", "a")
    values = iter([b"x"] * 100_000)

    def interrupt(timeout_ms: int) -> None:
        if timeout_ms:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(broker, "receive", interrupt)
        with pytest.raises(KeyboardInterrupt) as caught:
            bus.put_many("news", values) if many else bus.put("news", "b")
    assert "may be stored" in caught.value.__notes__[0]
    left = len(list(values))
    assert not many or 0 < left < 100_000
    bus.put("news", "c")
    assert broker.topics["news"][0] == b"a"
    assert broker.topics["news"][-1] == b"c"
    assert len(broker.topics["news"]) == (2 + 100_000 - left if many else 3)


def test_many_with_patience_go_on_after_a_resend(bus: Bus, broker: SmallBroker) -> None:
    """C6, Z9: the piece with an unknown outcome had been stored; the rest follows it, once."""
    values = [b"%d" % number for number in range(2 * PIECE_MESSAGES_MAX + 5)]
    broker.filter = lose(m.Put, only_answer=True)
    with pytest.raises(Unavailable) as caught:
        bus.put_many("news", iter(values), wait=5)
    broker.filter = lambda request: True
    assert caught.value.receipts.count == 0
    stored = caught.value.resend()
    assert (stored.count, stored.duplicates) == (len(values), PIECE_MESSAGES_MAX)
    assert broker.topics["news"] == values


@pytest.mark.parametrize("wait", [0, 5])
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_many_know_their_first_offset_although_answers_got_lost(
    bus: Bus, broker: SmallBroker, lost: int, wait: float
) -> None:
    """Z9: what was stored at the first try and answered at the second has the offset that it got then."""
    broker.add("news", b"before")
    size = PIECE_MESSAGES_MAX
    loses = lose(m.Put, only_answer=True)

    def lose_first(request: Any) -> bool | str:
        return loses(request) if len(broker.asked(m.Put)) <= lost else True

    broker.filter = lose_first
    stored = bus.put_many("news", [b"%d" % number for number in range(2 * size)], wait=wait)
    assert (stored.first_offset, stored.count) == (1, 2 * size)
    assert stored.duplicates > 0
    broker.filter = lose(m.Put, only_answer=True)
    with pytest.raises(Unavailable) as caught:
        bus.put_many("news", [b"x", b"y"], wait=wait)
    broker.filter = lambda request: True
    assert caught.value.resend() == Receipts("news", 1 + 2 * size, 2, 2)


def test_resend_is_over_once_something_else_was_put(bus: Bus, broker: SmallBroker) -> None:
    """Z9."""
    broker.filter = lose(m.Put)
    with pytest.raises(Unavailable) as caught:
        bus.put("news", "b")
    broker.filter = lambda request: True
    bus.put("news", "c")
    with pytest.raises(OutOfSequence):
        caught.value.resend()
    assert broker.topics["news"] == [b"c"]


def test_put_soon_and_flush(bus: Bus, broker: SmallBroker) -> None:
    soon = [bus.put_soon("news", str(i)) for i in range(50)]
    bus.flush()
    assert [each.result() for each in soon] == [Receipt("news", i) for i in range(50)]
    broker.filter = lose(m.Put)
    bus.put_soon("news", "lost")
    with pytest.raises(Unavailable):
        bus.flush()
    bus.flush()  # Said once.


def test_failed_puts_that_nobody_asks_for_do_not_pile_up(
    bus: Bus, broker: SmallBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidings.client.soon.FAILED_MAX", 3)
    broker.filter = lose(m.Put)
    lost = []
    for number in range(3):
        lost.append(bus.put_soon("news", str(number)))
        with pytest.raises(Unavailable):
            bus.put("sport", "other")
    with pytest.raises(LimitReached, match="nobody has read their errors"):
        bus.put_soon("news", "more")
    with pytest.raises(Unavailable):
        lost[0].result()
    broker.filter = lambda request: True
    assert bus.put_soon("news", "more").result() == Receipt("news", 0)
    with pytest.raises(Unavailable):
        bus.close()
    bus.close()


def test_a_transaction_is_one_request(bus: Bus, broker: SmallBroker) -> None:
    """Z10, and get-work-put as one."""
    bus.subscribe("orders")
    broker.add("orders", b"1", b"2", b"3")
    with bus.transaction() as tx:
        taken = [tx.get("orders"), tx.get("orders")]
        for message in taken:
            assert message is not None
            tx.put("invoices", message.value, key="k")
        tx.put(["invoices", "audit"], "done")
        assert broker.asked(m.Commit) == broker.asked(m.Put) == broker.asked(m.Ack) == []
    (commit,) = broker.asked(m.Commit)
    assert [part.count for part in commit.parts] == [2, 1]
    assert broker.topics["invoices"] == [b"1", b"2", b"done"]
    assert broker.cursors[("orders",)] == {"orders": 2}
    assert tx.receipts[-1] == [Receipt("invoices", 2), Receipt("audit", 0)]
    assert bus.get("orders").text == "3"  # type: ignore[union-attr]
    with pytest.raises(InvalidRequest):
        tx.put("invoices", "late")


def test_an_exception_rolls_back_and_the_messages_come_again(bus: Bus, broker: SmallBroker) -> None:
    """Z10."""
    bus.subscribe("orders")
    broker.add("orders", b"1", b"2", b"3")
    before = len(broker.requests)

    def take_and_fail() -> None:
        with bus.transaction() as tx:
            assert tx.get("orders").text == "1"  # type: ignore[union-attr]
            assert tx.get("orders").text == "2"  # type: ignore[union-attr]
            tx.put("invoices", "x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        take_and_fail()
    assert not [each for each in broker.requests[before:] if isinstance(each, (m.Commit, m.Ack, m.Put))]
    assert [bus.get("orders").text for _ in range(3)] == ["1", "2", "3"]  # type: ignore[union-attr]


@pytest.mark.parametrize("only_answer", [True, False])
def test_a_transaction_with_an_unknown_outcome_is_ended_before_its_messages_come_again(
    bus: Bus, broker: SmallBroker, only_answer: bool
) -> None:
    """Z10: neither lost nor done twice, whether or not the request had arrived."""
    bus.subscribe("orders")
    broker.add("orders", b"1", b"2")
    broker.filter = lose(m.Commit, only_answer=only_answer)
    with pytest.raises(Unavailable), bus.transaction() as tx:
        tx.put("invoices", tx.get("orders").value)  # type: ignore[union-attr]
    broker.filter = lambda request: True
    with bus.transaction() as tx:
        tx.put("invoices", tx.get("orders").value)  # type: ignore[union-attr]
        assert tx.get("orders") is None
    assert broker.topics["invoices"] == [b"1", b"2"]
    assert broker.cursors[("orders",)] == {"orders": 2}


def test_a_transaction_that_only_takes_and_one_that_does_nothing(bus: Bus, broker: SmallBroker) -> None:
    bus.subscribe("orders")
    broker.add("orders", b"1", b"2")
    with bus.transaction() as tx:
        assert tx.get("orders").text == "1"  # type: ignore[union-attr]
    assert broker.cursors[("orders",)] == {"orders": 1}
    with bus.transaction():
        pass
    assert len(broker.asked(m.Commit)) == 1


def test_handlers_are_called_in_turn_and_acknowledged_after(bus: Bus, broker: SmallBroker) -> None:
    """C1: push."""
    seen = []

    @bus.on("news")
    def show(message: Message) -> None:
        assert broker.cursors[NEWS]["news"] <= message.offset
        seen.append(message.text)

    @bus.on("sport")
    def stop(message: Message) -> None:
        seen.append(message.text)
        if message.text == "s2":
            bus.stop()

    broker.add("news", b"n1", b"n2", b"n3")
    broker.add("sport", b"s1", b"s2")
    bus.run()
    assert sorted(seen[:4]) == ["n1", "n2", "s1", "s2"]
    bus.run(timeout=1)
    assert sorted(seen) == ["n1", "n2", "n3", "s1", "s2"]
    assert broker.cursors[NEWS] == {"news": 3}


def test_the_message_of_a_handler_that_raises_comes_again(bus: Bus, broker: SmallBroker) -> None:
    seen = []

    @bus.on("news")
    def show(message: Message) -> None:
        seen.append(message.text)
        if seen == ["a", "b"]:
            raise KeyError("mine")

    broker.add("news", b"a", b"b", b"c")
    with pytest.raises(KeyError):
        bus.run(timeout=1)
    bus.run(timeout=1)
    assert seen == ["a", "b", "b", "c"]


def test_with_an_inbox_a_new_process_is_not_given_what_the_old_one_was(broker: SmallBroker, tmp_path: Path) -> None:
    """Z10: the client that dies between receiving and acknowledging."""
    first = Bus(broker, "alice", PATIENCE, tmp_path / "inbox", clock=broker.clock)
    subscription = first.subscribe("news")
    broker.add("news", b"a", b"b", b"c", b"d")
    broker.filter = lose(m.Ack)
    assert first.get("news").text == "a"  # type: ignore[union-attr]  # On disk, so it counts.
    loop = subscription.messages(timeout=0)
    assert next(loop).text == "b"
    first._core.inbox.close()  # type: ignore[union-attr]  # As the process's death would.
    broker.filter = lambda request: True
    broker.streams.clear()
    assert broker.cursors[NEWS] == {"news": 0}
    again = SmallBroker(broker.clock)
    again.topics, again.cursors = broker.topics, broker.cursors
    second = Bus(again, "alice", PATIENCE, tmp_path / "inbox", clock=broker.clock)
    assert [message.text for message in second.subscribe("news").messages(timeout=0)] == ["c", "d"]
    assert again.cursors[NEWS] == {"news": 4}
    second.close()


def test_a_new_subscription_starts_without_old_marks(broker: SmallBroker, tmp_path: Path) -> None:
    bus = Bus(broker, "alice", PATIENCE, tmp_path / "inbox", clock=broker.clock)
    bus.subscribe("news")
    broker.add("news", b"a", b"b")
    assert [message.text for message in bus.subscribe("news").messages(timeout=0)] == ["a", "b"]
    bus.unsubscribe("news")
    bus.subscribe("news", start="earliest")
    assert bus.get("news").text == "a"  # type: ignore[union-attr]
    bus.close()


def test_an_inbox_counts_a_message_as_handed_out_even_if_the_loop_breaks(broker: SmallBroker, tmp_path: Path) -> None:
    """Z10: a client with an inbox never sees a message twice."""
    bus = Bus(broker, "alice", PATIENCE, tmp_path / "inbox", clock=broker.clock)
    subscription = bus.subscribe("news")
    broker.add("news", b"a", b"b", b"c", b"d")
    for message in subscription:
        assert message.text == "a"
        break
    assert bus.get("news").text == "b"  # type: ignore[union-attr]
    for batch in subscription.batches(timeout=0):
        assert batch.values == [b"c", b"d"]
        break
    assert bus.get("news") is None
    bus.close()


def test_publishers_of_other_names(bus: Bus, broker: SmallBroker) -> None:
    with bus.publisher("import-7") as publisher:
        assert publisher.last_sequence("news") == 0
        publisher.put_many("news", ["a", "b"])
        assert publisher.put("news", "c", sequence=3) == Receipt("news", 2)
        assert publisher.put("news", "c", sequence=3).duplicate
        assert publisher.last_sequence("news") == 3
        publisher.put("news", "d")
    assert broker.topics["news"] == [b"a", b"b", b"c", b"d"]
    assert [each.client for each in broker.asked(m.Bye)] == ["import-7"]
    with pytest.raises(InvalidRequest):
        publisher.put("news", "e")
    with bus.publisher("alice") as own:
        own.put("news", "e")
    assert len(broker.asked(m.Bye)) == 1  # The bus's own name lives on.


def test_looking_around(bus: Bus, broker: SmallBroker) -> None:
    """C2."""
    bus.put("news", "x")
    assert [info.name for info in bus.topics()] == ["news"]
    assert bus.topic("news").count == 1
    with pytest.raises(NoSuchTopic):
        bus.topic("chess")
    assert bus.status() == {"topics": 1}
    assert bus.client_id == "alice"
    bus.shutdown()


def test_close_says_bye_and_never_fails(broker: SmallBroker) -> None:
    bus = Bus(broker, "alice", PATIENCE, clock=broker.clock)
    bus.put("news", "x")
    broker.filter = lose(m.Bye)
    start_ms = broker.clock.now_ms
    with bus:
        pass
    assert broker.clock.now_ms - start_ms <= 100
    assert broker.closed
    bus.close()
    with pytest.raises(InvalidRequest):
        bus.put("news", "y")


def test_nobody_there_is_unavailable(broker: SmallBroker) -> None:
    """Z8."""
    broker.filter = lambda request: False
    bus = Bus(broker, "alice", PATIENCE, clock=broker.clock)
    with pytest.raises(Unavailable, match="tcp://small:7400"):
        bus.start()
    assert [type(request) for request in broker.requests] == [m.Hello] * 3
    broker.filter = lambda request: True
    bus.start()
    bus.close()


def test_answers_that_came_while_nobody_looked_are_not_late(bus: Bus, broker: SmallBroker) -> None:
    """A program that does other things for a while has not lost its connection."""
    subscription = bus.subscribe("news")
    broker.add("news", b"a", b"b", b"c")
    for _ in subscription.messages(timeout=0):
        broker.clock.now_ms += 60_000
    assert broker.reopened == 0


def test_threads_take_turns(broker: SmallBroker) -> None:
    class Shared(SmallBroker):
        """Waits really, a little, so that other threads get their turn."""

        def receive(self, timeout_ms: int) -> list[bytes] | None:
            if self._answers:
                return self._answers.popleft()
            stirred.wait(min(timeout_ms, 5) / 1000)
            return None

    stirred = threading.Event()
    shared = Shared()
    bus = Bus(shared, "alice", ClientSettings(), clock=shared.clock)
    subscription = bus.subscribe("news")
    seen: list[str] = []

    def read() -> None:
        for message in subscription:
            seen.append(message.text)
            if len(seen) == 400:
                return

    def write(name: str) -> None:
        for i in range(100):
            bus.put("news", f"{name}{i}")

    threads = [
        *(threading.Thread(target=write, args=(c,), daemon=True) for c in "wxyz"),
        threading.Thread(target=read, daemon=True),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    for name in "wxyz":
        assert [text for text in seen if text[0] == name] == [f"{name}{i}" for i in range(100)]
    bus.close()


def test_stop_from_another_thread(bus: Bus, broker: SmallBroker) -> None:
    @bus.on("news")
    def show(message: Message) -> None:
        threading.Thread(target=bus.stop).start()

    broker.add("news", b"a")
    bus.run()
