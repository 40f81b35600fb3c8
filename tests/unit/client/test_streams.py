"""Streams of a session: gaps, repetitions, credit, beats and acknowledgements, against a scripted peer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.client.peer import LIMITS, Script, batch
from tidings.client.stream import Stream
from tidings.errors import Fenced, NotSubscribed, ProtocolError, Unavailable
from tidings.protocols.broker import messages as m

NEWS = ("news",)


def opened(script: Script, at: int | None = 10) -> tuple[Stream, m.Flow]:
    """A stream that the broker says stands at an offset."""
    script.session.now_ms = script.now_ms
    stream = script.session.streams.of(NEWS)
    script.session.streams.open(stream)
    (flow,) = script.sent()
    assert (flow.positions, flow.messages, flow.size_bytes) == ((), 0, 0)
    if at is not None:
        script.answer(m.Flowing(flow.request, flow.stream, (m.Position("news", at),)))
        (flow,) = script.sent()
        script.answer(m.Flowing(flow.request, flow.stream, (m.Position("news", at),)))
    return stream, flow


def deliver(script: Script, stream: int, since: int, *values: bytes, first: int | None = None) -> None:
    first = since if first is None else first
    script.answer(m.Delivery(stream, "news", since, first, first + len(values), 1), batch(*values))


def taken(stream: Stream) -> list[tuple[int, bytes]]:
    """Everything that the stream can hand out."""
    messages = []
    while (message := stream.peek()) is not None:
        messages.append((message.offset, message.value))
        stream.advance(1)
    return messages


def test_a_stream_that_knows_nothing_starts_at_the_cursor() -> None:
    """Z4."""
    script = Script()
    stream, flow = opened(script)
    assert flow.positions == (m.Position("news", 10),)
    assert (flow.messages, flow.size_bytes) == (65_536, 8 * 1024 * 1024)
    deliver(script, flow.stream, 10, b"a", b"b")
    assert taken(stream) == [(10, b"a"), (11, b"b")]
    assert stream.positions() == (m.Position("news", 12),)


def test_nothing_is_granted_before_the_start_is_known() -> None:
    """Z4: if the first delivery got lost, the second must not be taken for the start."""
    script = Script()
    stream, flow = opened(script, at=None)
    deliver(script, flow.stream, 5, b"b")
    assert taken(stream) == []
    script.answer(m.Flowing(flow.request, flow.stream, (m.Position("news", 4),)))
    (granted,) = script.sent()
    assert (granted.stream, granted.messages) == (flow.stream, 65_536)
    deliver(script, flow.stream, 5, b"b")
    (again,) = script.sent()
    assert again.positions == (m.Position("news", 4),)
    deliver(script, again.stream, 4, b"a", b"b")
    assert taken(stream) == [(4, b"a"), (5, b"b")]


def test_a_gap_opens_a_new_stream_at_our_position() -> None:
    """Z4: every message, in order."""
    script = Script()
    stream, flow = opened(script)
    deliver(script, flow.stream, 12, b"c")
    (again,) = script.sent()
    assert isinstance(again, m.Flow)
    assert again.stream > flow.stream
    assert again.positions == (m.Position("news", 10),)
    assert taken(stream) == []
    deliver(script, again.stream, 10, b"a", b"b", b"c")
    assert taken(stream) == [(10, b"a"), (11, b"b"), (12, b"c")]


def test_what_comes_twice_is_handed_out_once() -> None:
    """Z10."""
    script = Script()
    stream, flow = opened(script)
    deliver(script, flow.stream, 10, b"a", b"b")
    deliver(script, flow.stream, 10, b"a", b"b")
    deliver(script, flow.stream, 10, b"a", b"b", b"c")
    assert taken(stream) == [(10, b"a"), (11, b"b"), (12, b"c")]


def test_a_stored_batch_that_begins_before_our_position_is_cut() -> None:
    script = Script()
    stream, flow = opened(script)
    deliver(script, flow.stream, 10, b"8", b"9", b"10", b"11", first=8)
    assert taken(stream) == [(10, b"10"), (11, b"11")]


def test_messages_that_are_not_for_us_are_passed_over() -> None:
    script = Script()
    stream, flow = opened(script)
    script.answer(m.Delivery(flow.stream, "news", 10, 13, 13, 1))
    deliver(script, flow.stream, 13, b"a")
    assert taken(stream) == [(13, b"a")]


def test_old_and_unknown_stream_numbers_are_dropped() -> None:
    script = Script()
    stream, flow = opened(script)
    script.session.streams.open(stream)
    (again,) = script.sent()
    deliver(script, flow.stream, 10, b"old")
    deliver(script, 99, 10, b"unknown")
    assert taken(stream) == []
    deliver(script, again.stream, 10, b"new")
    assert taken(stream) == [(10, b"new")]


def test_a_delivery_that_did_not_come_is_noticed_by_the_probe() -> None:
    """Z6: no message is an answer only when nothing was under way."""
    script = Script()
    stream, flow = opened(script)
    probe = script.session.streams.probe(stream)
    (asked,) = script.sent()
    assert asked.stream == flow.stream
    script.answer(m.Flowing(asked.request, flow.stream, (m.Position("news", 11),)))
    assert [probe.done] == [False]
    (again,) = script.sent()
    assert again.positions == (m.Position("news", 10),)
    deliver(script, again.stream, 10, b"a")
    script.answer(m.Flowing(again.request, again.stream, (m.Position("news", 11),)))
    assert probe.done
    assert taken(stream) == [(10, b"a")]


def test_several_bodies_in_one_delivery_and_a_wrong_count() -> None:
    script = Script()
    stream, flow = opened(script)
    script.answer(m.Delivery(flow.stream, "news", 10, 9, 13, 2), batch(b"9", b"10"), batch(b"11", b"12"))
    assert taken(stream) == [(10, b"10"), (11, b"11"), (12, b"12")]
    script.answer(m.Delivery(flow.stream, "news", 13, 13, 20, 1), batch(b"13"))
    with pytest.raises(ProtocolError):
        stream.peek()


def test_credit_is_renewed_when_half_of_it_is_used() -> None:
    script = Script(credit_messages=4)
    stream, flow = opened(script)
    assert flow.messages == 4
    deliver(script, flow.stream, 10, b"a", b"b", b"c")
    stream.head()
    script.session.streams.renew(stream)
    assert script.sent() == []  # Nothing has been handed out yet.
    stream.advance(1)
    script.session.streams.renew(stream)
    assert script.sent() == []
    stream.advance(1)
    script.session.streams.renew(stream)
    (more,) = script.sent()
    assert (more.stream, more.messages) == (flow.stream, 6)  # Limits count from the stream's start.


def test_a_broker_that_lost_count_is_stopped() -> None:
    """A broker that was restarted meanwhile might take an old limit for a new one."""
    script = Script(credit_bytes=1000)
    _stream, flow = opened(script)
    for i in range(10):
        deliver(script, flow.stream, 10 + i, b"x" * 600)
    flows = [sent for sent in script.sent() if isinstance(sent, m.Flow)]
    assert flows[0].stream > flow.stream
    assert flows[0].size_bytes == 0


def test_silence_after_much_credit_was_used_starts_the_count_again() -> None:
    script = Script(credit_messages=4, beat_ms=100, timeout_ms=1000)
    stream, flow = opened(script)
    deliver(script, flow.stream, 10, b"a", b"b", b"c")
    taken(stream)
    beats = []
    for _ in range(2):
        script.wait(100)
        sent = script.sent()
        (beat,) = [each for each in sent if isinstance(each, m.Beat)]
        beats.append(beat)
        script.answer(m.BeatDone(beat.request, ()))
    (again,) = script.sent()
    assert again.stream > flow.stream
    assert again.positions == (m.Position("news", 13),)


def test_a_new_connection_opens_every_stream_again() -> None:
    """Z8."""
    script = Script()
    stream, flow = opened(script)
    deliver(script, flow.stream, 10, b"a")
    call = script.session.request(script.now_ms, lambda n, _: m.AskStatus(n))
    script.frames()
    script.time_out()
    sent = script.sent()
    assert [type(each) for each in sent[:2]] == [m.AskStatus, m.Flow]
    assert sent[0].request == call.number
    assert sent[1].stream > flow.stream
    assert sent[1].positions == (m.Position("news", 11),)
    assert taken(stream) == [(10, b"a")]  # What was received stays.


def test_beats_ask_whether_the_broker_still_serves_us() -> None:
    script = Script(beat_ms=2_000)
    stream, flow = opened(script)
    assert script.session.next_due_ms() == script.now_ms + 2_000
    script.wait(2_000)
    (beat,) = script.sent()
    assert beat == m.Beat(beat.request, "alice", 1, (flow.stream,))
    script.answer(m.BeatDone(beat.request, (flow.stream,)))
    (again,) = script.sent()
    assert again.stream > flow.stream
    assert again.positions == (m.Position("news", 10),)
    assert stream.number == again.stream


def test_a_delivery_that_was_lost_is_noticed_even_if_none_follows() -> None:
    """Z4."""
    script = Script(beat_ms=2_000)
    stream, flow = opened(script)
    script.wait(2_000)
    (beat,) = script.sent()
    script.answer(m.BeatDone(beat.request, ()))
    (asked,) = script.sent()
    assert (asked.stream, asked.request > beat.request) == (flow.stream, True)
    script.answer(m.Flowing(asked.request, flow.stream, (m.Position("news", 11),)))
    (again,) = script.sent()
    assert again.positions == (m.Position("news", 10),)
    deliver(script, again.stream, 10, b"a")
    assert taken(stream) == [(10, b"a")]


def test_unanswered_beats_follow_the_lazy_pirate() -> None:
    """Z8: waiting ends as Unavailable only when the tries are used up."""
    script = Script(beat_ms=2_000, timeout_ms=500)
    stream, _ = opened(script)
    script.wait(2_000)
    script.frames()
    numbers = [stream.number]
    for _ in range(2):
        script.wait(500)
        flows = [each for each in script.sent() if isinstance(each, m.Flow)]
        numbers.append(flows[0].stream)
        assert stream.error is None
    assert numbers == sorted(set(numbers))
    script.wait(500)
    assert isinstance(stream.error, Unavailable)
    assert stream.number == 0
    assert script.session.next_due_ms() is None


def test_no_stream_no_beat() -> None:
    script = Script()
    assert script.session.next_due_ms() is None
    opened(script)
    script.session.streams.drop(NEWS)
    assert script.session.next_due_ms() is None


def test_a_subscription_that_is_gone_ends_the_stream() -> None:
    """Z6."""
    script = Script()
    stream, flow = opened(script, at=None)
    script.refuse(flow.request, NotSubscribed)
    assert isinstance(stream.error, NotSubscribed)
    assert stream.number == 0


def test_a_fenced_session_loses_its_streams() -> None:
    script = Script()
    stream, flow = opened(script, at=None)
    script.refuse(flow.request, Fenced)
    assert isinstance(stream.error, Fenced)
    probe = script.session.streams.probe(stream)
    assert isinstance(probe.error, Fenced)


def test_a_new_epoch_opens_every_stream_again() -> None:
    script = Script()
    script.sure("sport")
    _, flow = opened(script)
    script.put("sport", b"a")
    script.run_out_of_tries()
    stream = script.session.streams.of(NEWS)
    script.session.streams.open(stream)
    script.frames()
    script.session.main.renew = True
    script.answer(m.Flowing(script.session._last_number, stream.number, (m.Position("news", 10),)))
    script.session.request(script.now_ms, lambda n, e: m.AskSubscriptions(n, "alice", e))
    (check,) = script.sent()
    script.answer(m.BeatDone(check.request, ()))
    (hello,) = script.sent()
    script.answer(m.Welcome(hello.request, 2, *LIMITS))
    flows = [each for each in script.sent() if isinstance(each, m.Flow)]
    assert flows[0].epoch == 2
    assert flows[0].stream > flow.stream


def acks(sent: list[Any]) -> list[int]:
    return [each.acknowledgement.positions[0].offset for each in sent if isinstance(each, m.Ack)]


def test_acknowledgements_that_pile_up_share_a_request() -> None:
    """Z7."""
    script = Script()
    stream, _ = opened(script)
    streams = script.session.streams
    for offset in (11, 12, 13):
        stream.note("news", offset)
        streams.flush(stream)
    (first,) = script.sent()
    assert acks([first]) == [11]
    script.answer(m.AckDone(first.request))
    (second,) = script.sent()
    assert acks([second]) == [13]
    script.answer(m.AckDone(second.request))
    streams.flush(stream)
    assert script.sent() == []


def test_an_acknowledgement_without_answer_is_sent_again() -> None:
    """Z7, Z8."""
    script = Script()
    stream, _ = opened(script)
    stream.note("news", 11)
    script.session.streams.flush(stream)
    first = script.frames()
    script.time_out()
    assert script.frames()[0] == first[0]
    script.run_out_of_tries()
    script.session.streams.flush(stream)
    assert acks(script.sent()) == [11]


def test_what_was_kept_can_be_taken_back_in_order() -> None:
    script = Script()
    stream, flow = opened(script)
    for since, values in ((10, (b"a", b"b")), (12, (b"c",)), (13, (b"d", b"e"))):
        deliver(script, flow.stream, since, *values)
    stream.head()
    stream.advance(1)
    buffered = stream.buffered_messages
    stream.keep()
    for expected in (b"b", b"c", b"d"):
        message = stream.peek()
        assert message is not None
        assert message.value == expected
        stream.advance(1)
    stream.take_back()
    assert stream.buffered_messages == buffered
    assert [value for _, value in taken(stream)] == [b"b", b"c", b"d", b"e"]
    assert stream.buffered_messages == 0


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5), st.booleans()), max_size=40))
def test_whatever_arrives_messages_come_out_once_and_in_order(deliveries: list[tuple[int, int, bool]]) -> None:
    """Z4, Z10: deliveries repeated, overlapping, missing, on old streams."""
    stream = Stream(NEWS)
    stream.begin(1)
    stream.received["news"] = 0
    out: list[int] = []
    for since, count, look in deliveries:
        body = batch(*(b"%d" % offset for offset in range(since, since + count)))
        stream.deliver(m.Delivery(1, "news", since, since, since + count, 1), [body])
        if look:
            for offset, value in taken(stream):
                assert value == b"%d" % offset
                out.append(offset)
    out += [offset for offset, _ in taken(stream)]
    assert out == list(range(stream.received["news"]))
    assert stream.buffered_messages == stream.buffered_bytes == 0


def acknowledging(script: Script) -> m.Ack:
    """A loop has noted something, and the answer to its acknowledgement is outstanding."""
    stream, _ = opened(script)
    stream.note("news", 12)
    script.session.streams.flush(stream)
    (ack,) = script.sent()
    assert isinstance(ack, m.Ack)
    return ack


def test_an_unanswered_acknowledgement_ends_with_its_subscription() -> None:
    """Z4: sent again, it would move the cursor of a subscription that was made after it, past what that has to get."""
    script = Script()
    acknowledging(script)
    script.session.streams.drop(NEWS)
    script.session.request(script.now_ms, lambda n, e: m.Subscribe(n, "alice", e, NEWS, "earliest"))
    assert [type(each) for each in script.sent()] == [m.Subscribe]
    script.time_out()
    assert [type(each) for each in script.sent()] == [m.Subscribe]


def test_nothing_is_acknowledged_behind_an_unsubscribe() -> None:
    """Z4: it could arrive so late that it moves the cursor of the next subscription."""
    script = Script()
    ack = acknowledging(script)
    stream = script.session.streams.of(NEWS)
    stream.note("news", 13)
    stream.leaving = True
    script.answer(m.AckDone(ack.request))
    assert script.sent() == []
    stream.leaving = False
    script.session.streams.flush(stream)
    assert [type(each) for each in script.sent()] == [m.Ack]


@pytest.mark.parametrize("answered", [True, False])
def test_a_subscription_is_made_in_a_new_epoch_if_an_older_acknowledgement_may_come_late(answered: bool) -> None:
    """Z4: a copy of it that is still under way is fenced."""
    script = Script()
    ack = acknowledging(script)
    script.time_out()
    script.sent()
    if answered:
        script.answer(m.AckDone(ack.request))
    script.session.streams.drop(NEWS)
    script.session.request(script.now_ms, lambda n, e: m.Subscribe(n, "alice", e, NEWS, "earliest"))
    (check,) = script.sent()
    assert isinstance(check, m.Beat)
    script.answer(m.BeatDone(check.request, ()))
    (hello,) = script.sent()
    assert isinstance(hello, m.Hello)
    script.answer(m.Welcome(hello.request, 2, *LIMITS))
    assert [(type(each), each.epoch) for each in script.sent()] == [(m.Subscribe, 2)]
