"""Sequence numbers, natural batching and puts with an unknown outcome, against a scripted peer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.client.peer import LIMITS, TOKEN, Script, outcome
from tidings.client.puts import Record, Together
from tidings.errors import (
    Fenced,
    InvalidRequest,
    LimitReached,
    MessageTooLarge,
    OutOfSequence,
    Overloaded,
    ProtocolError,
    Unavailable,
)
from tidings.message import Receipt, Receipts
from tidings.protocols.broker import messages as m
from tidings.wire import codec


def targets(put: m.Put) -> list[tuple[str, int]]:
    return [(target.topic, target.sequence) for target in put.part.targets]


def test_a_named_client_asks_where_its_numbers_stand_and_goes_on_from_there() -> None:
    """Z9."""
    script = Script()
    entry = script.put("news", b"hello")
    (ask,) = script.sent()
    assert ask == m.AskSequence(ask.request, "alice", 1, "news")
    script.answer(m.Sequence(ask.request, 41))
    (put,) = script.sent()
    assert targets(put) == [("news", 42)]
    script.store(put, 900)
    assert outcome(entry.future) == [Receipt("news", 900)]
    script.put("news", b"again")
    assert targets(script.sent()[0]) == [("news", 43)]  # Asked once.


def test_an_anonymous_client_starts_with_one() -> None:
    script = Script(anonymous=True)
    script.put("news", b"hello")
    assert targets(script.sent()[0]) == [("news", 1)]


def test_the_first_goes_alone_and_the_pile_goes_as_one() -> None:
    script = Script()
    script.sure("news")
    entries = [script.put("news", b"%d" % i) for i in range(5)]
    ((first, values),) = script.sent_values()
    assert (targets(first), values) == ([("news", 2)], [b"0"])
    script.store(first, 10)
    ((pile, values),) = script.sent_values()
    assert (targets(pile), values) == ([("news", 3)], [b"1", b"2", b"3", b"4"])
    script.answer(m.PutDone(pile.request, (m.Stored(20, ((1, 7),)),)))
    assert [outcome(entry.future)[0] for entry in entries] == [
        Receipt("news", 10),
        Receipt("news", 20),
        Receipt("news", 7, True),  # An id that the topic had taken before.
        Receipt("news", 21),
        Receipt("news", 22),
    ]


def test_full_batches_do_not_wait_and_batches_have_bounds() -> None:
    script = Script(batch_messages=2, in_flight_max=3)
    script.sure("news")
    for i in range(9):
        script.put("news", b"%d" % i)
    sent = script.sent_values()
    assert [values for _, values in sent] == [[b"0"], [b"1", b"2"], [b"3", b"4"]]
    assert [targets(put)[0][1] for put, _ in sent] == [2, 3, 5]
    script.store(sent[0][0], 1)
    assert [values for _, values in script.sent_values()] == [[b"5", b"6"]]


def test_topics_do_not_wait_for_each_other() -> None:
    script = Script()
    script.sure("news", "sport")
    script.put("news", b"a")
    script.put("sport", b"b")
    assert [targets(put) for put in script.sent()] == [[("news", 2)], [("sport", 2)]]


def test_a_put_to_several_topics_keeps_its_place_among_the_others() -> None:
    """Z4: what one publisher puts to a topic arrives there in the order of the calls."""
    script = Script()
    script.sure("news", "sport")
    script.put("news", b"a")
    script.put("news", b"b")
    both = script.put(("news", "sport"), b"both")
    script.put("news", b"c")
    script.put("sport", b"d")
    ((first, values),) = script.sent_values()
    assert values == [b"a"]
    script.store(first, 1)
    sent = [(put, values) for put, values in script.sent_values() if isinstance(put, m.Put)]
    assert [(targets(put), values) for put, values in sent] == [
        ([("news", 3)], [b"b"]),
        ([("news", 4), ("sport", 2)], [b"both"]),
        ([("sport", 3)], [b"d"]),
    ]
    script.answer(m.PutDone(sent[1][0].request, (m.Stored(5), m.Stored(8))))
    assert outcome(both.future) == [Receipt("news", 5), Receipt("sport", 8)]
    script.store(sent[0][0], 4)
    assert [(targets(put), values) for put, values in script.sent_values()] == [([("news", 5)], [b"c"])]


@pytest.mark.parametrize("error", [Overloaded, LimitReached, OutOfSequence])
def test_after_a_refusal_the_number_is_asked_for_again(error: type[Exception]) -> None:
    """Z9: a refused put has not used its number up, or has; only the broker knows."""
    script = Script()
    script.sure("news")
    refused = script.put("news", b"a")
    waiting = script.put("news", b"b")
    (put,) = script.sent()
    script.refuse(put.request, error)  # type: ignore[arg-type]
    assert isinstance(refused.future.error, error)
    (ask,) = script.sent()
    assert isinstance(ask, m.AskSequence)
    script.answer(m.Sequence(ask.request, 1))
    ((put, values),) = script.sent_values()
    assert (targets(put), values) == ([("news", 2)], [b"b"])
    assert not waiting.future.done


def test_the_number_is_asked_for_only_when_nothing_is_in_flight() -> None:
    """An answer that something in flight could still change would be no answer."""
    script = Script(batch_messages=1)
    script.sure("news")
    for value in (b"a", b"b"):
        script.put("news", value)
    first, second = script.sent()
    script.refuse(first.request, Overloaded)
    script.put("news", b"c")
    assert script.sent() == []
    script.refuse(second.request, OutOfSequence)
    (ask,) = script.sent()
    assert isinstance(ask, m.AskSequence)


def test_a_put_with_an_unknown_outcome_is_sent_again_as_it_was() -> None:
    """Z9: an application that tries again by itself loses nothing and doubles nothing."""
    script = Script()
    script.sure("news")
    entry = script.put("news", b"a")
    first = script.frames()
    script.run_out_of_tries()
    assert isinstance(entry.future.error, Unavailable)
    script.session.main.outbox.resend(entry)
    assert script.frames() == first
    script.answer(m.PutDone(entry_number(first), (m.Stored(None, ((0, 3),)),)))
    assert outcome(entry.future) == [Receipt("news", 3, True)]
    script.put("news", b"b")
    assert targets(script.sent()[0]) == [("news", 3)]  # And the numbers go on without a question.


def entry_number(frames: list[list[bytes]]) -> int:
    return codec.decode_request(frames[0][0]).request


def test_everything_with_an_unknown_outcome_is_sent_again_in_order() -> None:
    script = Script()
    script.sure("news")
    entries = [script.put("news", value) for value in (b"a", b"b", b"c")]
    first = script.frames()
    script.run_out_of_tries()
    script.session.main.outbox.resend(entries[2])
    assert script.frames() == first
    script.answer(m.PutDone(entry_number(first), (m.Stored(1),)))
    ((put, values),) = script.sent_values()
    assert (targets(put), values) == ([("news", 3)], [b"b", b"c"])
    script.store(put, 2)
    assert outcome(script.session.main.outbox.resend(entries[0])) == [Receipt("news", 1)]
    assert outcome(entries[2].future) == [Receipt("news", 3)]


def test_another_put_ends_the_doubt_in_a_new_epoch() -> None:
    """Z9: a late copy of the uncertain put must not take the number that the next message gets.

    The session asks in the old epoch whether that is current, takes a new one, which fences every late copy,
    and only then asks for the number.
    """
    script = Script()
    script.sure("news")
    uncertain = script.put("news", b"a")
    script.run_out_of_tries()
    after = script.put("news", b"b")
    (check,) = script.sent()
    assert check == m.Beat(check.request, "alice", 1, ())
    script.answer(m.BeatDone(check.request, ()))
    (hello,) = script.sent()
    assert hello.token != TOKEN
    script.answer(m.Welcome(hello.request, 2, *LIMITS))
    (ask,) = script.sent()
    assert (type(ask), ask.epoch) == (m.AskSequence, 2)
    script.answer(m.Sequence(ask.request, 1))
    (put,) = script.sent()
    assert (targets(put), put.epoch) == ([("news", 2)], 2)
    script.store(put, 1)
    assert outcome(after.future) == [Receipt("news", 1)]
    gone = script.session.main.outbox.resend(uncertain)
    assert isinstance(gone.error, OutOfSequence)


def test_a_session_that_was_taken_over_does_not_take_back() -> None:
    """A new epoch is asked for only while the old one is current."""
    script = Script()
    script.sure("news")
    script.put("news", b"a")
    script.run_out_of_tries()
    after = script.put("news", b"b")
    (check,) = script.sent()
    script.refuse(check.request, Fenced)
    assert script.sent() == []
    assert isinstance(after.future.error, Fenced)


@pytest.mark.parametrize("stored", [True, False])
def test_when_one_of_two_copies_is_refused_a_new_epoch_tells_about_the_other(stored: bool) -> None:
    """Z9: the put was sent twice and one copy was refused; the other may have been stored, or may yet be."""
    script = Script()
    script.sure("news")
    entry = script.put("news", b"a")
    (put,) = script.sent()
    script.time_out()
    script.frames()
    script.refuse(put.request, LimitReached)
    assert not entry.future.done
    (check,) = script.sent()
    script.answer(m.BeatDone(check.request, ()))
    (hello,) = script.sent()
    script.answer(m.Welcome(hello.request, 2, *LIMITS))
    (again,) = script.sent()
    assert (again.part, again.epoch) == (put.part, 2)
    if stored:
        script.answer(m.PutDone(again.request, (m.Stored(None, ((0, 1),)),)))
        assert outcome(entry.future) == [Receipt("news", 1, True)]
    else:
        script.refuse(again.request, LimitReached)
        assert isinstance(entry.future.error, LimitReached)


def test_overloaded_for_one_copy_says_nothing_about_the_other() -> None:
    """Z9: the first copy may have been stored before the disk was full for the second."""
    script = Script()
    script.sure("news")
    entry = script.put("news", b"a")
    (put,) = script.sent()
    script.time_out()
    script.frames()
    script.refuse(put.request, Overloaded)
    assert not entry.future.done
    script.time_out()
    (again,) = script.sent()
    assert again == put
    script.answer(m.PutDone(put.request, (m.Stored(None, ((0, 1),)),)))
    assert outcome(entry.future) == [Receipt("news", 1, True)]


def test_numbers_go_on_after_everything_that_was_given_one() -> None:
    """Z9: a later batch was answered, an earlier one is sent again: the next number comes after both."""
    script = Script(batch_messages=2, in_flight_max=2)
    script.sure("news")
    entry = script.put_many("news", [b"a", b"b", b"c", b"d"])
    first = script.frames()
    script.answer(m.PutDone(entry_number([first[1]]), (m.Stored(3),)))
    script.run_out_of_tries()
    script.session.main.outbox.resend(entry)
    assert script.frames() == [first[0]]
    script.answer(m.PutDone(entry_number([first[0]]), (m.Stored(None, ((0, 1), (1, 2))),)))
    assert outcome(entry.future) == Receipts("news", 1, 4, 2)
    script.put("news", b"e")
    assert targets(script.sent()[0]) == [("news", 6)]


def test_a_put_with_an_unknown_outcome_stays_so_when_the_new_epoch_is_refused() -> None:
    """Z9: that nobody could be asked says nothing about what had been stored."""
    script = Script()
    script.sure("news", "sport")
    uncertain = script.put("news", b"a")
    script.put("sport", b"b")
    script.run_out_of_tries()
    script.put("sport", b"c")  # Needs a new epoch.
    (check,) = script.sent()
    script.session.main.outbox.resend(uncertain)
    script.answer(m.BeatDone(check.request, ()))
    (hello,) = script.sent()
    script.refuse(hello.request, Overloaded)
    assert isinstance(uncertain.future.error, Unavailable)
    assert script.session.main.outbox.has_unknown("news")


def test_only_what_is_tied_to_it_is_sent_again_with_it() -> None:
    script = Script()
    script.sure("news", "sport", "chess")
    script.put("news", b"n")
    both = script.put(("news", "sport"), b"both")
    script.put("chess", b"c")
    script.frames()
    script.run_out_of_tries()
    script.session.main.outbox.resend(both)
    assert [targets(put) for put in script.sent()] == [[("news", 2)], [("news", 3), ("sport", 2)]]


def test_the_last_sequence_is_not_asked_for_while_a_put_has_an_unknown_outcome() -> None:
    """Z9: first a new epoch makes sure that no late copy can change the answer."""
    script = Script()
    script.sure("news")
    uncertain = script.put("news", b"a")
    script.run_out_of_tries()
    outbox = script.session.main.outbox
    assert outbox.has_unknown("news")
    outbox.fence_unknown("news")
    assert not outbox.has_unknown("news")
    outbox.last_sequence("news")
    (check,) = script.sent()
    assert isinstance(check, m.Beat)
    assert isinstance(outbox.resend(uncertain).error, OutOfSequence)


def test_put_many_keeps_a_window_and_reads_its_values_as_it_opens() -> None:
    script = Script(batch_messages=10, in_flight_max=2)
    script.sure("news")
    read = 0

    def values() -> Iterator[bytes]:
        nonlocal read
        for i in range(35):
            read += 1
            yield b"%d" % i

    entry = script.put_many("news", values())
    sent = script.sent_values()
    assert [len(given) for _, given in sent] == [10, 10]
    assert read == 20
    stored = 0
    while sent:
        put, given = sent.pop(0)
        script.store(put, 100 + stored)
        stored += len(given)
        sent += script.sent_values()
    assert outcome(entry.future) == Receipts("news", 100, 35)


def test_put_many_takes_text_keys_and_bounds_its_batches_by_size() -> None:
    script = Script(batch_bytes=1000)
    script.sure("news")
    script.put_many("news", ["ä" * 100] * 10, ["k"] * 10)
    sent = script.sent_values()
    assert [len(values) for _, values in sent] == [4, 4, 2]
    assert sent[0][1][0] == "ä".encode() * 100


@pytest.mark.parametrize(("values", "keys"), [([b"a", b"b"], [b"k"]), ([b"a"], [b"k", b"l"]), ([1, 2], None)])
def test_put_many_with_what_does_not_fit(values: list[object], keys: list[bytes] | None) -> None:
    script = Script()
    script.sure("news")
    entry = script.put_many("news", values, keys)
    for put in script.sent():
        script.store(put, 0)
    assert isinstance(entry.future.error, InvalidRequest)


def test_put_many_of_nothing_and_of_one_value() -> None:
    script = Script()
    script.sure("news")
    assert outcome(script.put_many("news", []).future) == Receipts("news", None, 0)
    with pytest.raises(InvalidRequest):
        script.put_many("news", b"one")


def test_put_many_refuses_a_message_above_the_limit() -> None:
    script = Script()
    script.sure("news")
    entry = script.put_many("news", [b"x" * (1024 * 1024 + 1)])
    assert isinstance(entry.future.error, MessageTooLarge)


def test_an_iterable_that_raises_ends_put_many_with_its_own_error() -> None:
    script = Script(batch_messages=2)
    script.sure("news")

    def values() -> Iterator[bytes]:
        yield from (b"a", b"b", b"c")
        raise KeyError("mine")

    entry = script.put_many("news", values())
    for put in script.sent():
        script.store(put, 5)
    assert isinstance(entry.future.error, KeyError)


def test_put_many_with_an_unknown_outcome_goes_on_where_it_was() -> None:
    """Z9."""
    script = Script(batch_messages=2, in_flight_max=2)
    script.sure("news")
    entry = script.put_many("news", [b"%d" % i for i in range(7)])
    first = script.frames()
    script.answer(m.PutDone(entry_number(first), (m.Stored(1),)))
    third = script.frames()
    script.run_out_of_tries()
    assert isinstance(entry.future.error, Unavailable)
    assert vars(entry.future.error)["receipts"] == Receipts("news", 1, 2)
    script.session.main.outbox.resend(entry)
    assert script.frames() == [first[1], third[0]]
    script.answer(m.PutDone(entry_number([first[1]]), (m.Stored(None, ((0, 3), (1, 4))),)))
    script.answer(m.PutDone(entry_number(third), (m.Stored(5),)))
    ((put, values),) = script.sent_values()
    assert (targets(put), values) == ([("news", 8)], [b"6"])
    script.store(put, 7)
    assert outcome(entry.future) == Receipts("news", 1, 7, 2)


def test_what_was_never_sent_of_many_goes_with_those_with_an_unknown_outcome() -> None:
    """Z9: two batches are with an unknown outcome, the next one was given a number and held back, and no new epoch was
    to be had."""
    script = Script(batch_messages=1, in_flight_max=3)
    script.sure("news")
    entry = script.put_many("news", [b"a", b"b", b"c", b"d", b"e"])
    first, second, third = script.sent()
    script.time_out()
    script.frames()
    script.refuse(third.request, OutOfSequence)
    script.refuse(second.request, OutOfSequence)
    script.store(first, 1)
    (check,) = script.sent()
    script.answer(m.BeatDone(check.request, ()))
    (hello,) = script.sent()
    script.refuse(hello.request, Overloaded)
    assert isinstance(entry.future.error, Unavailable)
    script.session.main.outbox.resend(entry)
    (hello,) = script.sent()
    script.answer(m.Welcome(hello.request, 2, *LIMITS))
    sent = [(put, values) for put, values in script.sent_values() if isinstance(put, m.Put)]
    assert [(targets(put), values) for put, values in sent] == [
        ([("news", 3)], [b"b"]),
        ([("news", 4)], [b"c"]),
        ([("news", 5)], [b"d"]),
    ]
    for offset, (put, _) in enumerate(sent, 2):
        script.store(put, offset)
    ((last, values),) = script.sent_values()
    assert (targets(last), values) == ([("news", 6)], [b"e"])
    script.store(last, 5)
    assert outcome(entry.future) == Receipts("news", 1, 5)


def test_put_many_stops_at_a_refusal() -> None:
    script = Script(batch_messages=2, in_flight_max=2)
    script.sure("news")
    entry = script.put_many("news", [b"%d" % i for i in range(9)])
    first, second = script.sent()
    script.refuse(first.request, Overloaded)
    assert not entry.future.done
    script.refuse(second.request, OutOfSequence)
    assert isinstance(entry.future.error, Overloaded)
    assert script.sent() == []


def test_a_publisher_of_another_name_has_its_own_hello_and_numbers() -> None:
    script = Script()
    who = script.session.identity("import-7", b"u" * 16)
    script.put("news", b"a", who)
    (hello,) = script.sent()
    assert (hello.client, hello.token) == ("import-7", b"u" * 16)
    script.answer(m.Welcome(hello.request, 5, *LIMITS))
    (ask,) = script.sent()
    assert (ask.client, ask.epoch) == ("import-7", 5)
    script.answer(m.Sequence(ask.request, 9))
    (put,) = script.sent()
    assert (put.client, put.epoch, targets(put)) == ("import-7", 5, [("news", 10)])
    assert script.session.identity("alice", b"u" * 16) is script.session.main


def test_a_number_given_by_the_caller() -> None:
    script = Script()
    entry = script.put("news", b"a", sequence=7)
    (put,) = script.sent()
    assert targets(put) == [("news", 7)]
    script.answer(m.PutDone(put.request, (m.Stored(None, ((0, 3),)),)))
    assert outcome(entry.future) == [Receipt("news", 3, True)]
    script.put("news", b"b")  # A repetition says nothing about the next number.
    assert isinstance(script.sent()[0], m.AskSequence)


def test_too_many_waiting_messages_are_overloaded() -> None:
    script = Script(waiting_messages_max=2)
    script.sure("news")
    entries = [script.put("news", b"x") for _ in range(4)]
    assert [entry.future.done for entry in entries] == [False, False, False, True]
    assert isinstance(entries[3].future.error, Overloaded)


def test_a_transaction_takes_its_place_among_the_puts() -> None:
    script = Script(batch_messages=2)
    script.sure("news", "out")
    script.put("out", b"a")
    script.put("out", b"b")
    ack = m.Acknowledgement(("news",), (m.Position("news", 5),))
    entry = Together([Record(("out",), value) for value in (b"x", b"y", b"z")], (ack,))
    script.session.main.outbox.give(entry)
    (put,) = script.sent()
    script.store(put, 1)
    (pile,) = script.sent()
    script.store(pile, 2)
    (commit,) = script.sent()
    assert commit.parts == (m.Part((m.Target("out", 4),), 2), m.Part((m.Target("out", 6),), 1))
    assert commit.acknowledgements == (ack,)
    script.answer(m.CommitDone(commit.request, ((m.Stored(3),), (m.Stored(5),))))
    assert outcome(entry.future) == [[Receipt("out", 3)], [Receipt("out", 4)], [Receipt("out", 5)]]


def test_a_transaction_with_an_unknown_outcome_is_ended_before_anything_follows_it() -> None:
    """Z10: whether it happened decides whether its messages come again, so it is never left open."""
    script = Script()
    script.sure("out")
    entry = Together([Record(("out",), b"x")], ())
    script.session.main.outbox.give(entry)
    first = script.frames()
    script.run_out_of_tries()
    assert isinstance(entry.future.error, Unavailable)
    script.put("out", b"after")
    sent = script.frames()
    assert sent[0] == first[0]
    script.answer(m.CommitDone(entry_number(first), ((m.Stored(1),),)))
    assert outcome(entry.future) == [[Receipt("out", 1)]]


def test_an_answer_that_does_not_fit_is_not_taken_for_a_receipt() -> None:
    script = Script()
    script.sure("news")
    entry = script.put("news", b"a")
    (put,) = script.sent()
    script.answer(m.PutDone(put.request, ()))
    assert isinstance(entry.future.error, ProtocolError)
