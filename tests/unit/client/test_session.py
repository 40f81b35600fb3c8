"""The Lazy Pirate, epochs and errors of the pure session, against a scripted peer."""

from __future__ import annotations

import pytest

from tests.unit.client.peer import LIMITS, TOKEN, Script
from tidings.errors import Fenced, ProtocolError, Unavailable
from tidings.protocols.broker import messages as m


def test_hello_goes_first_and_everything_else_waits_for_the_epoch() -> None:
    """Z8."""
    script = Script(greeted=False)
    call = script.session.request(script.now_ms, lambda n, epoch: m.AskSequence(n, "alice", epoch, "news"))
    (hello,) = script.sent()
    assert hello == m.Hello(1, m.VERSION, "alice", TOKEN, False)
    script.answer(m.Welcome(hello.request, 7, *LIMITS))
    assert script.sent() == [m.AskSequence(2, "alice", 7, "news")]
    script.answer(m.Sequence(2, 41))
    assert call.future.outcome() == m.Sequence(2, 41)


def test_an_unanswered_request_reopens_and_is_sent_again_with_the_same_bytes() -> None:
    """Z8: time-out, close and reopen the socket, resend the same request with the same identity."""
    script = Script(timeout_ms=100, retries=3)
    calls = [script.session.request(script.now_ms, lambda n, _: m.AskTopics(n, "a" * n)) for _ in range(3)]
    first = script.frames()
    assert len(first) == 3
    assert script.session.next_due_ms() == script.now_ms + 100
    script.wait(99)
    assert script.frames() == []
    assert script.reopened == 0
    script.wait(1)
    assert script.frames() == first  # In their order.
    assert script.reopened == 1
    script.answer(m.Topics(calls[1].number, ()))
    assert calls[1].future.done
    script.wait(100)
    assert script.frames() == [first[0], first[2]]  # What has been answered is not sent again.
    assert script.reopened == 2


def test_after_every_try_all_that_is_outstanding_is_unavailable() -> None:
    """Z8: three tries by default, then Unavailable."""
    script = Script()
    early = script.session.request(script.now_ms, lambda n, _: m.AskTopics(n))
    script.wait(1_000)
    late = script.session.request(script.now_ms, lambda n, _: m.AskStatus(n))
    for pause in (1_500, 2_500, 2_500):
        assert not early.future.done
        script.wait(pause)
        script.frames()
    for call in (early, late):
        assert isinstance(call.future.error, Unavailable)
    text = str(early.future.error)
    assert "tcp://broker:7400" in text
    assert "3 tries" in text
    assert "2.5 s" in text
    assert script.reopened == 3  # The last time so that nothing old is left in the connection.
    assert script.session.next_due_ms() is None


def test_tries_and_time_out_are_settings() -> None:
    """Z8: settings for time-out and tries."""
    script = Script(timeout_ms=10, retries=1)
    call = script.session.request(script.now_ms, lambda n, _: m.AskTopics(n))
    script.wait(10)
    assert isinstance(call.future.error, Unavailable)
    assert "after 1 try of 0.01 s" in str(call.future.error)


def test_after_unavailable_the_next_call_tries_again() -> None:
    """Z8."""
    script = Script()
    script.session.request(script.now_ms, lambda n, _: m.AskTopics(n))
    script.run_out_of_tries()
    call = script.session.request(script.now_ms, lambda n, _: m.AskStatus(n))
    (status,) = script.sent()
    script.answer(m.Status(status.request, {}))
    assert call.future.outcome() == m.Status(status.request, {})


def test_a_hello_without_answer_is_said_again_with_the_same_token() -> None:
    """Z8: so it gets the same epoch again."""
    script = Script(greeted=False)
    welcomed = script.session.start(script.now_ms)
    first = script.frames()
    script.time_out()
    assert script.frames() == first
    script.run_out_of_tries()
    assert isinstance(welcomed.error, Unavailable)
    again = script.session.start(script.now_ms)
    (hello,) = script.sent()
    assert hello.token == TOKEN
    script.answer(m.Welcome(hello.request, 1, *LIMITS))
    assert again.done


def test_late_and_repeated_answers_are_dropped() -> None:
    """Z8: a request that was sent twice may be answered twice."""
    script = Script()
    call = script.session.request(script.now_ms, lambda n, _: m.AskStatus(n))
    script.time_out()
    script.answer(m.Status(call.number, {"topics": 1}))
    script.answer(m.Status(call.number, {"topics": 2}))
    script.answer(m.Status(99, {}))
    assert call.future.outcome() == m.Status(call.number, {"topics": 1})


def test_a_session_that_was_fenced_says_so_from_then_on() -> None:
    """A newer session of the same name has taken over."""
    script = Script()
    call = script.session.request(script.now_ms, lambda n, e: m.AskSubscriptions(n, "alice", e))
    script.refuse(call.number, Fenced, "A newer session of 'alice' has taken over.")
    assert isinstance(call.future.error, Fenced)
    script.frames()
    after = script.session.request(script.now_ms, lambda n, e: m.AskSubscriptions(n, "alice", e))
    assert isinstance(after.future.error, Fenced)
    assert script.frames() == []
    put = script.put("news", b"x")
    assert isinstance(put.future.error, Fenced)


def test_bytes_that_are_not_an_answer_fail_what_is_outstanding() -> None:
    script = Script()
    call = script.session.request(script.now_ms, lambda n, _: m.AskStatus(n))
    script.session.receive(script.now_ms, [b"\xff\x00nonsense"])
    assert isinstance(call.future.error, ProtocolError)


def test_an_answer_of_the_wrong_kind_to_hello() -> None:
    script = Script(greeted=False)
    welcomed = script.session.start(script.now_ms)
    script.answer(m.ByeDone(1))
    with pytest.raises(ProtocolError):
        welcomed.outcome()


def test_an_old_copy_of_a_subscribe_cannot_undo_a_newer_unsubscribe() -> None:
    """A Subscribe was sent twice. Before the next change a new epoch fences the copy that may still arrive."""
    script = Script()
    subscribe = script.session.request(script.now_ms, lambda n, e: m.Subscribe(n, "alice", e, ("news",)))
    script.time_out()
    script.frames()
    script.answer(m.SubscribeDone(subscribe.number, (), True))
    script.session.request(script.now_ms, lambda n, e: m.Unsubscribe(n, "alice", e, ("news",)))
    (check,) = script.sent()
    assert check == m.Beat(check.request, "alice", 1, ())
    script.answer(m.BeatDone(check.request, ()))
    (hello,) = script.sent()
    assert hello.token != TOKEN
    script.answer(m.Welcome(hello.request, 2, *LIMITS))
    (unsubscribe,) = script.sent()
    assert isinstance(unsubscribe, m.Unsubscribe)
    assert unsubscribe.epoch == 2


def test_an_unsubscribe_without_answer_cannot_undo_a_newer_subscribe() -> None:
    """The same when no copy was ever answered."""
    script = Script()
    script.session.request(script.now_ms, lambda n, e: m.Unsubscribe(n, "alice", e, ("news",)))
    script.run_out_of_tries()
    script.session.request(script.now_ms, lambda n, e: m.Subscribe(n, "alice", e, ("news",)))
    (check,) = script.sent()
    assert isinstance(check, m.Beat)


def test_two_sessions_with_the_same_calls_send_the_same_bytes() -> None:
    """The session has no clock and no randomness of its own."""

    def run() -> list[list[bytes]]:
        script = Script()
        script.sure("news", "sport")
        script.put("news", b"a")
        script.put(("news", "sport"), b"b")
        sent = script.frames()
        script.time_out()
        return sent + script.frames()

    assert run() == run()


def subscribe(script: Script) -> None:
    script.session.request(script.now_ms, lambda n, epoch: m.Subscribe(n, "alice", epoch, ("news",), "earliest"))


def unsubscribe(script: Script) -> None:
    script.session.request(script.now_ms, lambda n, epoch: m.Unsubscribe(n, "alice", epoch, ("news",)))
    (sent,) = script.sent()
    script.answer(m.UnsubscribeDone(sent.request))


@pytest.mark.parametrize("case", ["unanswered", "sent twice", "answered"])
def test_an_old_acknowledgement_cannot_move_the_cursor_of_a_new_subscription(case: str) -> None:
    """Z4: it may still be on its way over an older connection, so a new epoch fences it before anybody subscribes."""
    script = Script(timeout_ms=100)
    request = script.session.streams.acknowledge(script.session.streams.of(("news",)), (m.Position("news", 7),))
    script.sent()
    if case == "sent twice":
        script.wait(100)
        assert len(script.sent()) == 1
    if case != "unanswered":
        script.answer(m.AckDone(request.number))
    unsubscribe(script)
    subscribe(script)
    if case == "unanswered":
        assert script.sent() == [], "nothing overtakes what may still be answered"
        script.answer(m.AckDone(request.number))
    (sent,) = script.sent()
    if case == "answered":
        assert isinstance(sent, m.Subscribe)
        return
    if isinstance(sent, m.Beat):  # First it is asked whether the session still counts.
        script.answer(m.BeatDone(sent.request, ()))
        (sent,) = script.sent()
    assert isinstance(sent, m.Hello) and sent.renews
    script.answer(m.Welcome(sent.request, 9, *LIMITS))
    again = [each for each in script.sent() if isinstance(each, m.Subscribe)]
    assert [each.epoch for each in again] == [9]
