"""A member's stream: batches, acks, and what is said after an interruption, against a scripted peer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.client.peer import LIMITS, Script, batch, outcome
from tidings.client import working
from tidings.client.member import Member
from tidings.client.members import EARLY_MAX
from tidings.client.operations import Core
from tidings.errors import Fenced, NotSubscribed, Overloaded, ProtocolError, Unavailable
from tidings.protocols.broker import messages as m


class Shop(Script):
    """A session that is a member of the group `workers` on `jobs`, with its stream open."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.session.now_ms = self.now_ms
        self.member = self.session.members.of("workers", "jobs")
        self.session.members.open(self.member)
        (join,) = self.sent()
        assert isinstance(join, m.Join)
        assert (join.group, join.topic, join.start, join.lanes) == ("workers", "jobs", "earliest", "key")
        self.answer(m.JoinDone(join.request, True))
        self.work = self.stand()

    def stand(self, *kept: m.Kept, acked: tuple[tuple[int, int], ...] = ()) -> m.Work:
        (work,) = self.sent()
        assert isinstance(work, m.Work)
        self.answer(m.Working(work.request, work.stream, kept, acked))
        return work

    def group_batch(self, number: int, *offsets: int, attempt: int = 1, turn: int | None = None) -> None:
        values = [b"v%d" % offset for offset in offsets]
        half = len(values) // 2
        bodies = [batch(*part) for part in (values[:half], values[half:]) if part]
        self.answer(m.GroupBatch(self.member.number, turn or self.member.turn + 1, number, attempt, offsets), *bodies)

    def take(self, count: int = 1) -> list[tuple[int, int]]:
        """Hands out messages, as (offset, attempt)."""
        found = []
        while count and self.member.ready():
            share = self.member.head()
            assert share is not None
            message = share[self.member.index]
            assert message.value == b"v%d" % message.offset
            found.append((message.offset, message.attempt))
            self.member.take(1)
            count -= 1
        return found

    def done(self, *offsets: int) -> None:
        self.session.now_ms = self.now_ms
        self.member.finish(offsets)
        self.session.members.flush(self.member)

    def acks(self) -> tuple[m.BatchRanges, ...]:
        (self.ack,) = self.sent()
        assert isinstance(self.ack, m.GroupAck)
        assert self.ack.stream == self.member.number
        found: tuple[m.BatchRanges, ...] = self.ack.acks
        return found

    def acked(self, *stale: int, turn: int | None = None) -> None:
        self.answer(m.GroupAckDone(self.ack.request, stale, turn or self.member.turn + 1))


def in_flight(member: Member) -> list[int]:
    return sorted(member.in_flight)


def test_a_stream_opens_with_its_room_and_nothing_in_flight() -> None:
    shop = Shop(room_messages=7)
    assert (shop.work.room, shop.work.held, shop.work.group, shop.work.topic) == (7, (), "workers", "jobs")
    assert shop.member.standing


def test_messages_come_in_the_order_of_the_batches() -> None:
    """C3."""
    shop = Shop()
    shop.group_batch(1, 3, 5, 8)
    shop.group_batch(2, 4)
    assert shop.take(9) == [(3, 1), (5, 1), (8, 1), (4, 1)]
    assert in_flight(shop.member) == [3, 4, 5, 8]


def test_acks_share_requests_and_whole_batches_are_named_whole() -> None:
    """C11: one request in flight; what is done meanwhile goes with the next one."""
    shop = Shop()
    shop.group_batch(1, 0, 1, 2)
    shop.group_batch(2, 3, 4)
    shop.take(5)
    shop.done(0)
    assert shop.acks() == (m.BatchRanges(1, ((0, 1),)),)
    shop.done(1, 2)
    shop.done(3, 4)
    assert shop.sent() == []
    shop.acked()
    assert in_flight(shop.member) == [1, 2, 3, 4]
    assert shop.acks() == (m.BatchRanges(1), m.BatchRanges(2))
    shop.acked()
    assert in_flight(shop.member) == []
    assert shop.sent() == []


def test_a_quick_loop_acks_small_batches_as_a_whole() -> None:
    """C11"""
    shop = Shop()
    shop.group_batch(1, 0, 2)
    shop.group_batch(2, 4, 6, 8)
    shop.group_batch(3, 10, 12, 14, 16)
    shop.take(9)
    for offsets in ((0, 2), (4, 6), (10,)):
        shop.member.finish(offsets)
    shop.session.members.flush_whole(shop.member, 3)
    assert shop.acks() == (m.BatchRanges(1), m.BatchRanges(3, ((10, 11),)))
    shop.acked()
    assert shop.sent() == []
    shop.member.finish((8,))
    shop.session.members.flush_whole(shop.member, 3)
    assert shop.acks() == (m.BatchRanges(2),)


def test_what_was_held_back_is_acked_once_somebody_wants_everything_acked() -> None:
    """C11"""
    shop = Shop()
    shop.group_batch(1, 0, 2)
    shop.group_batch(2, 4, 6, 8)
    shop.take(5)
    shop.member.finish((0, 2))
    shop.member.finish((4,))
    assert shop.member.any_whole()
    shop.session.members.flush_whole(shop.member, 3)
    assert shop.acks() == (m.BatchRanges(1),)
    assert not shop.member.any_whole()
    shop.session.members.flush(shop.member)
    assert shop.sent() == []
    shop.acked()
    assert shop.acks() == (m.BatchRanges(2, ((4, 5),)),)


def test_nobody_who_waits_for_one_message_waits_for_the_rest_of_its_batch() -> None:
    """C9"""
    shop = Shop()
    shop.group_batch(1, 0, 2)
    shop.group_batch(2, 4, 6, 8)
    shop.take(5)
    shop.member.finish((0, 2))
    shop.session.members.flush_whole(shop.member, 3)
    assert shop.acks() == (m.BatchRanges(1),)
    waiter = shop.session.members.acknowledge(shop.member, 4, 1)
    shop.session.members.flush_whole(shop.member, 3)
    shop.acked()
    assert shop.acks() == (m.BatchRanges(2, ((4, 5),)),)
    shop.acked()
    assert outcome(waiter) is None


def test_a_batch_sent_again_is_not_handed_out_again() -> None:
    """C11: what is in flight only learns its new attempt."""
    shop = Shop()
    shop.group_batch(1, 0, 1, 2)
    assert shop.take() == [(0, 1)]
    shop.group_batch(1, 0, 1, 2, attempt=2)
    assert shop.take(9) == [(1, 2), (2, 2)]
    shop.done(0, 1, 2)
    assert [each.batch for each in shop.acks()] == [1]


def test_what_comes_in_any_order_of_offsets_is_known_when_it_comes_again() -> None:
    """C8"""
    shop = Shop()
    shop.group_batch(1, 5, 9)
    shop.group_batch(2, 3, 7)
    shop.group_batch(3, 12)
    shop.group_batch(4, 3, 5, 7, 9, 11, 12, attempt=2)
    assert sorted(shop.take(9)) == [(3, 2), (5, 2), (7, 2), (9, 2), (11, 2), (12, 2)]
    assert in_flight(shop.member) == [3, 5, 7, 9, 11, 12]


def test_messages_in_flight_that_come_under_another_number_change_their_batch() -> None:
    """What is being worked on or done already is acked under the new number; only what is new is handed out."""
    shop = Shop()
    shop.group_batch(1, 0, 1, 2)
    shop.take(2)
    shop.done(0)
    assert shop.acks() == (m.BatchRanges(1, ((0, 1),)),)
    shop.group_batch(9, 0, 1, 2, 3, attempt=2)
    shop.acked(1)
    assert shop.acks() == (m.BatchRanges(9, ((0, 1),)),)
    assert shop.take(9) == [(2, 2), (3, 2)]
    shop.done(1, 2, 3)
    shop.acked()
    assert shop.acks() == (m.BatchRanges(9, ((1, 4),)),)
    assert shop.member.refused == 0


def test_what_another_member_has_got_is_counted_and_dropped() -> None:
    """C9: a stale ack."""
    shop = Shop()
    shop.group_batch(1, 0, 1)
    shop.take(2)
    shop.done(0, 1)
    shop.acks()
    shop.acked(1)
    assert shop.member.refused == 2
    assert in_flight(shop.member) == []


def test_a_single_acknowledgement_is_confirmed_or_refused() -> None:
    """C9: a late one says that the work was given to another member."""
    shop = Shop()
    shop.group_batch(1, 0, 1)
    shop.group_batch(2, 2)
    shop.take(3)
    good, bad = (shop.session.members.acknowledge(shop.member, offset, 1) for offset in (0, 2))
    assert shop.acks() == (m.BatchRanges(1, ((0, 1),)),)
    assert not good.done
    shop.acked()
    assert outcome(good) is None
    assert shop.acks() == (m.BatchRanges(2),)
    shop.acked(2)
    with pytest.raises(Fenced, match="given to another member"):
        outcome(bad)
    with pytest.raises(Fenced):
        outcome(shop.session.members.acknowledge(shop.member, 2, 1))


def test_where_several_were_acked_at_once_each_waiter_gets_its_own_answer() -> None:
    """C9: only the batch is named as stale, so the messages are acked one by one."""
    shop = Shop()
    shop.group_batch(1, 0, 1, 2, 3)
    shop.take(4)
    shop.done(0)
    shop.acks()
    first, second = (shop.session.members.acknowledge(shop.member, offset, 1) for offset in (1, 2))
    shop.acked()
    assert shop.acks() == (m.BatchRanges(1, ((1, 3),)),)
    shop.acked(1)
    assert shop.acks() == (m.BatchRanges(1, ((1, 2),)),)
    shop.acked()
    assert shop.acks() == (m.BatchRanges(1, ((2, 3),)),)
    shop.acked(1)
    assert outcome(first) is None
    with pytest.raises(Fenced):
        outcome(second)


def test_what_waits_cannot_be_acknowledged() -> None:
    shop = Shop()
    shop.group_batch(1, 0)
    with pytest.raises(Fenced):
        outcome(shop.session.members.acknowledge(shop.member, 0, 1))


def interrupted(shop: Shop) -> m.Work:
    """A time-out with something unanswered: a new connection, and the stream once more; the Work is unanswered."""
    before = shop.member.number
    shop.time_out()
    (work,) = shop.sent()
    assert isinstance(work, m.Work)
    assert shop.reopened == 1
    assert work.stream > before
    return work


def test_a_new_connection_says_what_is_in_flight_and_acks_again_what_was_not_confirmed() -> None:
    """C7, C8: what has gone to others is dropped, from the buffer too."""
    shop = Shop()
    shop.group_batch(1, 0, 1, 2, 3)
    shop.group_batch(2, 7, 9, attempt=3)
    shop.take(2)
    shop.done(0)
    shop.acks()
    work = interrupted(shop)
    assert work.held == (m.Held(1, ((0, 4),)), m.Held(3, ((7, 8), (9, 10))))
    shop.answer(m.Working(work.request, work.stream, (m.Kept(11, 1, ((0, 2), (3, 4))), m.Kept(12, 3, ((9, 10),)))))
    assert shop.acks() == (m.BatchRanges(11, ((0, 1),)),)
    assert in_flight(shop.member) == [0, 1, 3, 9]
    assert shop.take(9) == [(3, 1), (9, 3)]
    shop.acked()
    shop.done(1, 3, 9)
    assert shop.acks() == (m.BatchRanges(11, ((1, 2), (3, 4))), m.BatchRanges(12, ((9, 10),)))
    shop.acked()
    assert (in_flight(shop.member), shop.member.refused) == ([], 0)


def test_nothing_is_handed_out_between_saying_what_is_in_flight_and_the_answer() -> None:
    """C9: what was said not to be handed out may be another's as new by now, also if the connection breaks again."""
    shop = Shop()
    shop.group_batch(1, 0, 1, 2)
    assert shop.take() == [(0, 1)]
    for _ in range(2):
        shop.session.members.open(shop.member)
        (work,) = shop.sent()
        assert work.taken == ((0, 1),)
        assert shop.take(9) == []
    shop.answer(m.Working(work.request, work.stream, (m.Kept(7, 1, ((0, 2),)),)))
    assert shop.take(9) == [(1, 1)]


def test_an_ack_whose_answer_was_lost_is_not_taken_for_somebody_elses() -> None:
    """C11: the broker says what this member has acked itself; the rest was acked by another."""
    shop = Shop()
    shop.group_batch(1, 0, 1, 2)
    shop.take(2)
    sent = shop.session.members.acknowledge(shop.member, 0, 1)
    shop.acks()
    unsent = shop.session.members.acknowledge(shop.member, 1, 1)
    work = interrupted(shop)
    shop.answer(m.Working(work.request, work.stream, (), ((0, 1),)))
    assert outcome(sent) is None
    with pytest.raises(Fenced):
        outcome(unsent)
    assert not shop.member.ready()
    assert in_flight(shop.member) == []


def test_batches_of_an_old_stream_are_dropped() -> None:
    shop = Shop()
    old = shop.member.number
    shop.session.members.open(shop.member)
    shop.stand()
    shop.answer(m.GroupBatch(old, 1, 1, 1, (0,)), batch(b"v0"))
    assert not shop.member.ready()


def test_batches_are_taken_in_their_turn_and_once() -> None:
    """C11, C12: what comes early waits, what comes twice is dropped."""
    shop = Shop()
    shop.group_batch(2, 1, turn=2)
    shop.group_batch(3, 2, turn=3)
    assert not shop.member.ready()
    shop.group_batch(1, 0, turn=1)
    shop.group_batch(2, 1, turn=2)
    assert shop.take(9) == [(0, 1), (1, 1), (2, 1)]


def test_a_batch_sent_again_that_comes_after_its_ack_is_not_handed_out() -> None:
    """C11: the answer to the ack waits for what was sent before it."""
    shop = Shop()
    shop.group_batch(1, 0, turn=1)
    assert shop.take(1) == [(0, 1)]
    shop.done(0)
    shop.acks()
    shop.acked(turn=3)
    assert in_flight(shop.member) == [0]
    shop.group_batch(1, 0, attempt=2, turn=2)
    assert (in_flight(shop.member), shop.member.ready()) == ([], False)


@pytest.mark.parametrize("kind", ["parcel", "answer"])
def test_a_gap_that_is_not_filled_opens_the_stream_again(kind: str) -> None:
    """C11: a batch was lost; the next beat shows that nothing more comes, or the broker's count does."""
    shop = Shop(beat_ms=100)
    shop.group_batch(1, 0, turn=1)
    if kind == "parcel":
        shop.group_batch(3, 2, turn=3)
        shop.wait(100)
        (beat,) = shop.sent()
        shop.answer(m.BeatDone(beat.request, ()))
    else:
        shop.session.members.probe(shop.member)
        (asked,) = shop.sent()
        shop.answer(m.Working(asked.request, asked.stream, turn=2))
    work = shop.stand(m.Kept(4, 1, ((0, 1),)))
    assert (work.begins, work.held) == (True, (m.Held(1, ((0, 1),)),))
    shop.group_batch(5, 1, 2, attempt=2, turn=1)
    assert shop.take(9) == [(0, 1), (1, 2), (2, 2)]


def test_more_than_can_be_early_opens_the_stream_again() -> None:
    """Bounded: what waits for its turn is, too."""
    shop = Shop()
    for turn in range(2, EARLY_MAX + 3):
        shop.group_batch(turn, turn, turn=turn)
    assert shop.stand().begins
    assert not shop.member.early


def test_finishing_a_message_that_was_lost_does_not_ack_its_next_copy() -> None:
    """C9: the broker took it back, and gave it to this member once more while the first copy was still worked on."""
    shop = Shop()
    shop.group_batch(1, 0)
    assert shop.take(1) == [(0, 1)]
    shop.session.members.open(shop.member)
    shop.stand()
    shop.group_batch(5, 0, attempt=2)
    shop.done(0)
    assert shop.sent() == []
    assert shop.member.refused == 1
    assert shop.take(1) == [(0, 2)]
    shop.done(0)
    assert shop.acks() == (m.BatchRanges(5),)


def test_an_old_copy_of_a_message_cannot_be_acknowledged_for_a_new_one() -> None:
    """C9: it was lost, came again and was handed out again; what was made of the first copy does not count."""
    shop = Shop()
    shop.group_batch(1, 0)
    assert shop.take(1) == [(0, 1)]
    shop.session.members.open(shop.member)
    shop.stand()
    shop.group_batch(5, 0, attempt=3)
    assert shop.take(1) == [(0, 3)]
    with pytest.raises(Fenced):
        outcome(shop.session.members.acknowledge(shop.member, 0, 1))
    acknowledged = shop.session.members.acknowledge(shop.member, 0, 3)
    assert shop.acks() == (m.BatchRanges(5),)
    shop.acked()
    assert outcome(acknowledged) is None


@pytest.mark.parametrize("number", [5, 6])
def test_an_old_copy_cannot_be_acknowledged_when_the_next_one_waited_and_came_again(number: int) -> None:
    """C9: the copy that waits was never handed out at its first attempt, so nobody can speak for that."""
    shop = Shop()
    shop.group_batch(1, 0)
    assert shop.take(1) == [(0, 1)]
    shop.session.members.open(shop.member)
    shop.stand()
    shop.group_batch(5, 0)
    shop.group_batch(number, 0, attempt=2)
    assert shop.take(1) == [(0, 2)]
    with pytest.raises(Fenced):
        outcome(shop.session.members.acknowledge(shop.member, 0, 1))
    shop.session.members.acknowledge(shop.member, 0, 2)
    assert len(shop.acks()) == 1


def test_a_copy_in_flight_stays_good_when_its_batch_is_sent_again_or_its_stream_begins_again() -> None:
    """C7, C11: the member has had it all the time, under whatever number and attempt the broker speaks of it now."""
    shop = Shop()
    shop.group_batch(1, 0, 1)
    assert shop.take(2) == [(0, 1), (1, 1)]
    shop.group_batch(1, 0, 1, attempt=2)
    shop.group_batch(4, 1, attempt=3)
    shop.session.members.open(shop.member)
    work = shop.stand(m.Kept(7, 2, ((0, 1),)), m.Kept(8, 3, ((1, 2),)))
    assert work.taken == ((0, 2),)
    (took,) = shop.sent()
    assert took.taken == ((0, 2),), "they count as handed out at their new attempts"
    waiting = [shop.session.members.acknowledge(shop.member, offset, 1) for offset in (0, 1)]
    assert shop.acks() == (m.BatchRanges(7, ((0, 1),)),)
    shop.acked()
    assert shop.acks() == (m.BatchRanges(8, ((1, 2),)),)
    shop.acked()
    assert [outcome(each) for each in waiting] == [None, None]
    assert in_flight(shop.member) == []


def test_a_broker_that_has_forgotten_the_stream_does_not_fence_the_session() -> None:
    """C8, C9: after a restart or a lost lease the stream is opened again, in the same session."""
    shop = Shop()
    shop.group_batch(1, 0, 1)
    shop.take(1)
    shop.done(0)
    shop.acks()
    shop.refuse(shop.ack.request, Fenced)
    assert shop.session.main.fenced is None
    work = shop.stand(m.Kept(5, 1, ((0, 2),)))
    assert work.held == (m.Held(1, ((0, 2),)),)
    assert shop.acks() == (m.BatchRanges(5, ((0, 1),)),)
    assert shop.take(9) == [(1, 1)]


def test_a_beat_that_misses_the_stream_opens_it_again() -> None:
    """C9: the lease was lost while nobody looked."""
    shop = Shop(beat_ms=100)
    shop.group_batch(1, 0)
    shop.wait(100)
    (beat,) = shop.sent()
    assert beat.streams == (shop.member.number,)
    shop.answer(m.BeatDone(beat.request, beat.streams))
    assert shop.stand().held == (m.Held(1, ((0, 1),)),)
    assert not shop.member.ready()


def test_a_new_epoch_joins_again_before_it_works() -> None:
    """C7: membership belongs to an epoch."""
    shop = Shop()
    shop.session.main.renew = True
    asked = shop.session.request(shop.now_ms, lambda number, _: m.AskTopics(number))
    (check,) = shop.sent()
    shop.answer(m.BeatDone(check.request, ()))
    (hello,) = shop.sent()
    shop.answer(m.Welcome(hello.request, 2, *LIMITS))
    sent = {type(each): each for each in shop.sent()}
    shop.answer(m.Topics(sent[m.AskTopics].request, ()))
    assert asked.future.done
    assert sent[m.Join].epoch == 2
    shop.answer(m.JoinDone(sent[m.Join].request, False))
    assert shop.stand().epoch == 2


def test_a_newer_session_of_the_name_ends_the_membership() -> None:
    """C9: Work is refused, and so is the Join after it: that is final."""
    shop = Shop()
    shop.session.members.open(shop.member)
    (work,) = shop.sent()
    shop.refuse(work.request, Fenced)
    (join,) = shop.sent()
    assert isinstance(join, m.Join)
    shop.refuse(join.request, Fenced, "A newer session has taken over.")
    assert shop.session.main.fenced is not None
    assert isinstance(shop.member.error, Fenced)
    assert shop.sent() == []


def test_a_message_given_back_takes_along_what_is_behind_it() -> None:
    """C11: nothing is handed out until the broker has said what it takes back."""
    shop = Shop()
    shop.group_batch(1, 0, 1, 2)
    shop.take()
    shop.session.members.nack(shop.member, (0,), 250)
    (release,) = shop.sent()
    assert (release.nack, release.delay_ms) == (m.BatchRanges(1, ((0, 1),)), 250)
    assert not shop.member.ready()
    shop.answer(m.GroupNackDone(release.request, ((0, 2),), 2))
    assert shop.take(9) == [(2, 1)]
    shop.done(2)
    assert shop.acks() == (m.BatchRanges(1, ((2, 3),)),)


def test_a_message_is_given_back_on_the_next_stream_if_this_one_ends_first() -> None:
    shop = Shop()
    shop.group_batch(1, 0, 1)
    shop.take()
    shop.session.members.nack(shop.member, (0,), 0)
    shop.sent()
    work = interrupted(shop)
    shop.answer(m.Working(work.request, work.stream, (m.Kept(4, 1, ((0, 2),)),)))
    (release,) = shop.sent()
    assert release.nack == m.BatchRanges(4, ((0, 1),))


def test_without_an_answer_the_stream_ends_as_unavailable_and_keeps_what_is_in_flight() -> None:
    """C7: a long interruption; what was done is acked when the broker is back."""
    shop = Shop()
    shop.group_batch(1, 0, 1)
    shop.take(1)
    waiting = shop.session.members.acknowledge(shop.member, 0, 1)
    shop.run_out_of_tries()
    with pytest.raises(Unavailable):
        outcome(waiting)
    assert isinstance(shop.member.error, Unavailable)
    assert in_flight(shop.member) == [0, 1]
    shop.session.members.open(shop.member)
    work = shop.stand(m.Kept(3, 1, ((0, 2),)))
    assert work.held == (m.Held(1, ((0, 2),)),)
    assert shop.acks() == (m.BatchRanges(3, ((0, 1),)),)


def test_an_ack_that_is_refused_for_now_goes_with_the_next_one() -> None:
    shop = Shop()
    shop.group_batch(1, 0, 1)
    shop.take(2)
    shop.done(0)
    shop.acks()
    shop.refuse(shop.ack.request, Overloaded)
    assert isinstance(shop.member.error, Overloaded)
    shop.member.error = None
    shop.done(1)
    assert shop.acks() == (m.BatchRanges(1),)


def test_who_waited_for_a_refused_ack_is_told_once_and_may_try_again() -> None:
    """The next try is a request of its own, and not the old error once more."""
    shop = Shop()
    shop.group_batch(1, 0, 1)
    shop.take(1)
    first = shop.session.members.acknowledge(shop.member, 0, 1)
    shop.acks()
    shop.refuse(shop.ack.request, Overloaded)
    assert isinstance(first.error, Overloaded)
    assert shop.member.error is None
    again = shop.session.members.acknowledge(shop.member, 0, 1)
    assert shop.acks() == (m.BatchRanges(1, ((0, 1),)),)
    shop.acked()
    outcome(again)
    assert in_flight(shop.member) == [1]


def test_an_acknowledgement_takes_along_what_a_loop_was_refused() -> None:
    """What is said about it is the answer to this request, and not to the one before."""
    shop = Shop()
    core = Core(shop.session, None, lambda: shop.now_ms, lambda operation: None)
    shop.group_batch(1, 0, 1)
    shop.take(1)
    shop.done(0)
    shop.acks()
    shop.refuse(shop.ack.request, Overloaded)
    share = shop.member.head()
    assert share is not None
    message = share[shop.member.index]
    shop.take(1)
    waiting = working.ack(core, shop.member, message)
    next(waiting)
    assert shop.acks() == (m.BatchRanges(1),)
    shop.acked()
    with pytest.raises(StopIteration):
        waiting.send(True)


def test_a_client_that_is_no_member_any_more_is_told() -> None:
    shop = Shop()
    shop.session.members.open(shop.member)
    (work,) = shop.sent()
    shop.refuse(work.request, NotSubscribed)
    assert isinstance(shop.member.error, NotSubscribed)
    shop.session.members.open(shop.member)
    (join,) = shop.sent()
    assert isinstance(join, m.Join)


def test_a_batch_that_does_not_hold_what_it_says_is_not_taken() -> None:
    shop = Shop()
    shop.answer(m.GroupBatch(shop.member.number, 1, 1, 1, (0, 1)), batch(b"v0"))
    with pytest.raises(ProtocolError):
        shop.member.head()


def test_what_a_loop_did_not_get_to_waits_again_in_order() -> None:
    shop = Shop()
    shop.group_batch(1, 0, 1, 2, 3)
    share = shop.member.head()
    assert share is not None
    shop.member.take(2)
    shop.member.put_back(share, 1, 2)
    assert shop.take(9) == [(1, 1), (2, 1), (3, 1)]
