"""A session and a replica group: redirects, elections, dead members. Against a scripted peer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.client.peer import LIMITS, Script, batch
from tidings.client.route import PATIENCE_MS, PAUSE_MS, REDIRECTS_MAX
from tidings.client.session import GROUP_BEATS
from tidings.errors import OutOfSequence, Unavailable
from tidings.protocols.broker import messages as m
from tidings.settings import ClientSettings

A, B, C = MEMBERS = tuple(f"tcp://{name}:7400" for name in "abc")
GROUP = ",".join(MEMBERS)

BEAT_MS = ClientSettings().beat_ms // GROUP_BEATS


def ask(script: Script) -> Any:
    """A request of the session, which has been sent or waits to be."""
    return script.session.request(script.now_ms, lambda n, _: m.AskTopics(n, "a" * n))


def test_a_redirect_is_followed_at_once_with_the_same_bytes_in_the_same_order() -> None:
    """Z8, P6: and it uses up no try."""
    script = Script(address=GROUP)
    calls = [ask(script) for _ in range(3)]
    first = script.frames()
    script.answer(m.NotLeader(calls[0].number, B, MEMBERS))
    assert script.frames() == first
    assert script.places == [B]
    script.answer(m.Topics(calls[1].number, ()))
    script.answer(m.NotLeader(calls[0].number, C, MEMBERS))
    assert script.frames() == [first[0], first[2]]
    assert script.places == [B, C]
    for call in (calls[0], calls[2]):
        script.answer(m.Topics(call.number, ()))
    assert all(call.future.outcome() == m.Topics(call.number, ()) for call in calls)


def test_one_address_is_enough_to_find_a_group() -> None:
    """P6: anyone who is asked names the members, and so does the leader's Welcome."""
    script = Script(greeted=False, address=B)
    welcomed = script.session.start(script.now_ms)
    hello = script.frames()
    assert not script.session.route.grouped
    script.answer(m.NotLeader(1, A, (A, B)))
    assert script.frames() == hello
    assert script.places == [A]
    script.answer(m.Welcome(1, 1, *LIMITS, members=MEMBERS))
    assert welcomed.done
    assert set(script.session.route.known) == set(MEMBERS)


def test_the_welcome_of_a_single_broker_changes_nothing() -> None:
    script = Script(timeout_ms=2_500)
    assert not script.session.route.grouped
    ask(script)
    script.frames()
    assert script.session.next_due_ms() == script.now_ms + 2_500


def test_what_comes_over_the_connection_that_is_left_no_longer_counts() -> None:
    """P6: a member that begins to lead in between refuses what follows the put that it had sent elsewhere."""
    script = Script(address=GROUP)
    script.sure("news", "sport")
    entries = [script.put("news", b"a"), script.put("sport", b"b")]
    first, second = puts = script.sent()
    script.answer(m.NotLeader(first.request, B))
    script.refuse(second.request, OutOfSequence)
    script.answer(m.NotLeader(second.request, C))
    assert script.sent() == puts
    assert script.places == [B]
    script.store(first, 1)
    script.store(second, 1)
    assert [entry.future.done and entry.future.error for entry in entries] == [None, None]


def test_while_nobody_leads_nothing_is_sent_and_then_the_next_member_is_asked() -> None:
    """P6: by the session's timers."""
    script = Script(address=GROUP)
    early = ask(script)
    first = script.frames()
    script.answer(m.NotLeader(early.number, "", MEMBERS))
    assert script.frames() == []
    late = ask(script)
    assert script.frames() == []
    assert script.session.next_due_ms() == script.now_ms + PAUSE_MS
    script.wait(PAUSE_MS - 1)
    assert script.frames() == []
    script.wait(1)
    frames = script.frames()
    assert frames[0] == first[0]
    assert len(frames) == 2
    assert script.places == [B]
    script.answer(m.NotLeader(early.number, "", MEMBERS))
    script.answer(m.NotLeader(late.number, C, MEMBERS))  # Somebody has been elected meanwhile.
    assert script.frames() == frames
    assert script.places == [B, C]
    for call in (early, late):
        script.answer(m.Topics(call.number, ()))
        assert call.future.done
    assert (early.copies, late.copies) == (3, 2)


def test_what_has_not_left_yet_waits_for_the_end_of_the_pause_too() -> None:
    """The answer to one request came in before the shell had sent the next."""
    script = Script(address=GROUP)
    early = ask(script)
    script.frames()
    ask(script)
    script.answer(m.NotLeader(early.number, ""))
    assert script.frames() == []
    script.wait(100)
    assert len(script.frames()) == 2


def test_redirects_are_counted_from_the_last_answer_of_a_leader() -> None:
    """P6: a leader may change more often in the life of a session than redirects are followed in a row."""
    script = Script(address=GROUP)
    for leader in (B, C) * REDIRECTS_MAX:
        call = ask(script)
        script.frames()
        script.answer(m.NotLeader(call.number, leader, MEMBERS))
        assert len(script.frames()) == 1
        script.answer(m.Topics(call.number, ()))
        assert call.future.done


def test_an_answer_during_a_pause_is_dropped_like_one_that_got_lost() -> None:
    script = Script(address=GROUP)
    calls = [ask(script), ask(script)]
    script.frames()
    script.answer(m.NotLeader(calls[0].number, ""))
    script.answer(m.Topics(calls[1].number, ()))
    assert not calls[1].future.done
    script.wait(100)
    assert len(script.frames()) == 2


@pytest.mark.parametrize(("timeout_ms", "retries"), [(2_500, 3), (1_000, 1), (50, 4)])
@pytest.mark.parametrize("says", ["nothing", "nobody", "in circles"])
def test_a_call_waits_as_long_as_for_a_single_broker_and_no_longer(says: str, timeout_ms: int, retries: int) -> None:
    """Z8: tries times time-out from when it was first sent, whatever the members say."""
    script = Script(address=GROUP, timeout_ms=timeout_ms, retries=retries)
    call = ask(script)
    began_ms, sent = script.now_ms, 0
    while not call.future.done:
        frames = script.frames()
        sent += len(frames)
        if frames and says == "nobody":
            script.answer(m.NotLeader(call.number, "", MEMBERS))
        elif frames and says == "in circles":
            here = script.session.route.at
            script.answer(m.NotLeader(call.number, B if here == A else A, MEMBERS))
            continue
        due_ms = script.session.next_due_ms()
        assert due_ms is not None
        assert due_ms > script.now_ms
        script.wait(due_ms - script.now_ms)
    assert isinstance(call.future.error, Unavailable)
    assert A in str(call.future.error)
    assert script.now_ms - began_ms == timeout_ms * retries
    assert sent <= REDIRECTS_MAX + 2 * (5 + timeout_ms * retries // 100)
    script.frames()
    again = ask(script)
    assert len(script.frames()) == 1
    script.answer(m.Topics(again.number, ()))
    assert again.future.done


def test_a_member_that_does_not_answer_is_left_for_the_next() -> None:
    """Z8, P6: all three are asked before a single broker would have been given up once."""
    script = Script(address=GROUP)
    call = ask(script)
    first = script.frames()
    for place in (B, C):
        script.wait(PATIENCE_MS)
        assert script.frames() == first
        assert script.places[-1] == place
    script.answer(m.Topics(call.number, ()))
    assert call.future.done


def test_a_slow_leader_is_not_left_as_long_as_it_says_anything() -> None:
    script = Script(address=GROUP)
    slow = ask(script)
    for _ in range(6):
        quick = ask(script)
        script.wait(PATIENCE_MS - 100)
        script.answer(m.Topics(quick.number, ()))
    script.frames()
    assert script.reopened == 0
    assert not slow.future.done
    script.wait(script.session.settings.timeout_ms - 6 * (PATIENCE_MS - 100))
    assert len(script.frames()) == 1  # After a whole time-out the request is taken for lost.
    assert script.places == [B]


def subscriber(*values: bytes, **settings: Any) -> Script:
    """A session with a stream that stands and has brought these messages, and nothing outstanding."""
    script = Script(address=GROUP, **settings)
    stream = script.session.streams.of(("news",))
    script.session.streams.open(stream)
    (flow,) = script.sent()
    script.answer(m.Flowing(flow.request, flow.stream, (m.Position("news", 0),)))
    (flow,) = script.sent()
    script.answer(m.Flowing(flow.request, flow.stream, (m.Position("news", 0),)))
    if values:
        script.answer(m.Delivery(flow.stream, "news", 0, 0, len(values), 1), batch(*values))
    assert script.sent() == []
    return script


@pytest.mark.parametrize("request_zero", [True, False])
def test_streams_start_over_at_the_new_leader_where_they_stood(request_zero: bool) -> None:
    """P6: as after a restart. A deposed leader says so unasked (request 0); a dead one misses a beat."""
    script = subscriber(b"one", b"two")
    old = script.session.streams.of(("news",)).number
    if request_zero:
        script.answer(m.NotLeader(0, C, MEMBERS))
    else:
        script.wait(BEAT_MS)
        (beat,) = script.sent()
        assert isinstance(beat, m.Beat)
        script.wait(PATIENCE_MS)
        (flow,) = script.sent()
        script.answer(m.NotLeader(flow.request, C, MEMBERS))
    (flow,) = script.sent()
    assert isinstance(flow, m.Flow)
    assert script.places[-1] == C
    assert flow.positions == (m.Position("news", 2),)
    assert flow.stream > old


def test_elsewhere_without_a_leader_and_without_a_request() -> None:
    script = subscriber()
    script.answer(m.NotLeader(0, ""))
    assert script.sent() == []
    script.wait(100)
    (flow,) = script.sent()
    assert isinstance(flow, m.Flow)
    assert script.places == [B]


def test_a_reader_of_a_group_that_is_gone_is_told() -> None:
    """Z8: though every move opens new streams."""
    script = subscriber()
    stream = script.session.streams.of(("news",))
    began_ms = script.now_ms
    while stream.error is None:
        assert script.now_ms - began_ms < 20_000
        script.wait(100)
        script.frames()
    assert isinstance(stream.error, Unavailable)
    limit_ms = script.session.settings.timeout_ms * script.session.settings.retries
    assert 0 <= script.now_ms - began_ms - BEAT_MS - limit_ms <= 100


def test_a_reader_is_not_given_up_as_long_as_somebody_leads() -> None:
    """Z8: puts are answered in time, though every leader is gone before it has opened the stream."""
    script = subscriber(timeout_ms=400, retries=3)
    script.sure("news")
    for _ in range(10):
        entry = script.put("news", b"x")
        sent = script.sent()
        (put,) = (request for request in sent if isinstance(request, m.Put))
        script.answer(m.NotLeader(put.request, B if script.session.route.at == A else A, MEMBERS))
        assert {type(request) for request in script.sent()} == {m.Put, m.Flow}
        script.store(put, 1)
        assert entry.future.done
        script.wait(300)
    assert script.session.failures == 0
    assert script.session.streams.of(("news",)).error is None


def test_readers_of_a_group_beat_often_and_look_after_silent_streams_as_before() -> None:
    script = subscriber(beat_ms=2_000)
    kinds = []
    for _ in range(16):
        script.wait(250)
        for request in script.sent():
            kinds.append(type(request))
            if isinstance(request, m.Beat):
                script.answer(m.BeatDone(request.request, ()))
            else:
                script.answer(m.Flowing(request.request, request.stream, (m.Position("news", 0),)))
    assert kinds.count(m.Beat) == 8
    assert kinds.count(m.Flow) == 2


def test_an_elsewhere_to_a_request_that_nobody_waits_for_is_late() -> None:
    script = Script(address=GROUP)
    script.answer(m.NotLeader(77, B, MEMBERS))
    assert script.sent() == []
    assert script.reopened == 0


def test_puts_in_flight_are_stored_once_by_the_new_leader() -> None:
    """Z8: their numbers stay, so that the leader knows those that it has."""
    script = Script(address=GROUP, in_flight_max=4, batch_messages=1)
    script.sure("news")
    entries = [script.put("news", f"{number}".encode()) for number in range(4)]
    puts = script.sent()
    assert [put.part.targets[0].sequence for put in puts] == [2, 3, 4, 5]
    script.store(puts[0], 1)
    script.wait(PATIENCE_MS)
    assert script.sent() == puts[1:]
    script.answer(m.PutDone(puts[1].request, (m.Stored(None, ((0, 2),)),)))  # The dead leader had stored that one.
    for number, put in enumerate(puts[2:], start=3):
        script.store(put, number)
    assert [entry.future.error for entry in entries] == [None] * 4
    assert all(entry.future.done for entry in entries)


def test_a_member_of_a_consumer_group_says_at_the_new_leader_what_it_has_in_flight() -> None:
    script = Script(address=GROUP)
    member = script.session.members.of("workers", "jobs")
    script.session.members.open(member)
    (join,) = script.sent()
    script.answer(m.JoinDone(join.request, True))
    (work,) = script.sent()
    script.answer(m.GroupBatch(work.stream, 1, 1, 1, (0, 1)), batch(b"one", b"two"))
    script.answer(m.Working(work.request, work.stream, turn=1))
    script.answer(m.NotLeader(0, B, MEMBERS))
    (again,) = script.sent()
    assert isinstance(again, m.Work)
    assert again.begins
    assert again.stream > work.stream
    assert again.held == (m.Held(1, ((0, 2),)),)
    assert script.places == [B]


def test_who_was_silent_until_everything_was_given_up_is_not_asked_first_again() -> None:
    """P6: with few tries that is before the patience with one member ends, and a dead one would be asked for ever."""
    script = Script(address=GROUP, timeout_ms=PATIENCE_MS // 4, retries=1)
    for place in (B, C, A):
        call = ask(script)
        script.frames()
        script.wait(PATIENCE_MS // 4)
        with pytest.raises(Unavailable):
            call.future.outcome()
        assert script.session.route.at == place
