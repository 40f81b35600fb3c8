"""Who works on what: each rule alone, the tables of the document behind them, and stories made at random."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.protocols.broker.consumer_groups.group_model import World, run, step
from tidings.errors import Fenced, InvalidRequest, LimitReached
from tidings.protocols.broker.consumer_groups.key_handoff import KeyHandoff
from tidings.protocols.broker.consumer_groups.lanes import Lanes
from tidings.protocols.broker.consumer_groups.members import (
    Flight,
    Lane,
    LaneSettings,
    LanesMoved,
    Member,
    MemberInactive,
    MemberSlow,
    MemberState,
    OrderingKey,
    PickedBatch,
    Stale,
)
from tidings.protocols.broker.consumer_groups.progress import Progress

RED, BLUE, GREEN = b"red", b"blue", b"green"


def group(*members: str, room: int = 100, **changes: int) -> Lanes:
    lanes = Lanes(LaneSettings(**changes))
    for member in members:
        lanes.join(member, 0)
        lanes.grant(member, room)
    return lanes


def sent(batches: list[PickedBatch]) -> dict[str, list[int]]:
    """member -> offsets, in the order in which they went out."""
    found: dict[str, list[int]] = {}
    for batch in batches:
        found.setdefault(batch.member, []).extend(batch.offsets)
    return found


def finish(lanes: Lanes, batch: PickedBatch, now_ms: int = 0, offsets: list[int] | None = None) -> list[int]:
    ack = lanes.ack(batch.member, batch.number, offsets, now_ms)
    lanes.confirm(ack)
    return list(ack.offsets)


def state_of(lanes: Lanes, member: str) -> MemberState:
    return next(each for each in lanes.describe().members if each.member == member)


def work_off(lanes: Lanes, now_ms: int = 0) -> list[tuple[str, int]]:
    """Acks whatever is sent until nothing comes any more: (member, offset) as they ended."""
    ended: list[tuple[str, int]] = []
    while batches := lanes.pick(now_ms):
        for batch in batches:
            ended += [(batch.member, offset) for offset in finish(lanes, batch, now_ms)]
    return ended


# The tables of the document.


def test_table_1_published_before_anybody_subscribes() -> None:
    """C5: it waits, and the first who comes gets it."""
    lanes = group()
    assert lanes.credit() == 0
    lanes.offer(0, [RED, BLUE] * 5)
    assert lanes.pick(0) == []
    lanes.join("ada", 1)
    lanes.grant("ada", 100)
    assert sent(lanes.pick(1)) == {"ada": list(range(10))}


def test_table_1_two_subscribers_share_equally() -> None:
    """C3"""
    lanes = group("ada", "bob")
    lanes.offer(0, [None] * 10)
    assert {member: len(offsets) for member, offsets in sent(lanes.pick(0)).items()} == {"ada": 5, "bob": 5}


def test_table_1_a_thousand_messages_in_two_partitions() -> None:
    """C3"""
    lanes = group("ada", "bob", room=1_000)
    lanes.offer(0, [RED, BLUE] * 500)
    assert sent(lanes.pick(0)) == {"ada": list(range(0, 1_000, 2)), "bob": list(range(1, 1_000, 2))}


def test_tables_3_and_9_ten_messages_in_two_partitions_with_two_members() -> None:
    """C3, C4: a partition goes whole and in order to one member; afterwards nothing of it is remembered."""
    lanes = group("ada", "bob")
    lanes.offer(0, [RED] * 5 + [BLUE] * 5)
    batches = lanes.pick(0)
    assert sent(batches) == {"ada": [0, 1, 2, 3, 4], "bob": [5, 6, 7, 8, 9]}
    assert lanes.describe().lanes == 2
    for batch in batches:
        finish(lanes, batch)
    state = lanes.describe()
    assert (state.lanes, state.unacked) == (0, 0)
    assert [each.lanes for each in state.members] == [0, 0]


def test_table_3_five_messages_in_five_partitions_with_five_members() -> None:
    """C4"""
    lanes = group("a", "b", "c", "d", "e")
    lanes.offer(0, [b"%d" % number for number in range(5)])
    assert sent(lanes.pick(0)) == {"a": [0], "b": [1], "c": [2], "d": [3], "e": [4]}


def test_table_4_small_delays_cost_nothing() -> None:
    """C7"""
    lanes = group("ada", "bob", room=1)
    lanes.offer(0, [RED, BLUE] * 5)
    now_ms = 0
    while batches := lanes.pick(now_ms):
        now_ms += 300
        for batch in batches:
            finish(lanes, batch, now_ms)
        assert lanes.tick(now_ms) == []
    assert not any(each.slow for each in lanes.describe().members)
    assert lanes.describe().moved_lanes == 0


@pytest.mark.parametrize("first", ["ada", "bob"])
def test_table_4_anyone_who_comes_back_first_gets_the_other_four(first: str) -> None:
    """C7: one has finished its five and gone, the other has finished one of its five and is closed."""
    lanes = group("ada", "bob", room=1)
    lanes.offer(0, [RED, BLUE] * 5)
    ada, bob = lanes.pick(0)
    finish(lanes, bob)
    while ada.member == "ada":
        finish(lanes, ada)
        found = [batch for batch in lanes.pick(0) if batch.member == "ada"]
        if not found:
            break
        ada = found[0]
    lanes.leave("ada", 1)
    lanes.leave("bob", 1)
    assert lanes.pick(1) == []
    lanes.join(first, 2)
    lanes.grant(first, 100)
    batches = lanes.pick(2)
    assert sent(batches) == {first: [3, 5, 7, 9]}
    assert [batch.attempt for batch in batches] == [2, 1]


def test_table_5_what_was_not_acknowledged_is_offered_again() -> None:
    """C8: five of ten were stored; before anything was processed, and after all of it was."""
    keys: list[OrderingKey | None] = [RED, BLUE, RED, BLUE, RED]
    for processed, expected in ((Progress(), [0, 1, 2, 3, 4]), (Progress(5), [])):
        lanes = group("ada")
        offsets = [offset for start, end in processed.gaps(0, 5) for offset in range(start, end)]
        lanes.offer_some(offsets, [keys[offset] for offset in offsets])
        assert sent(lanes.pick(0)).get("ada", []) == expected


def test_table_6_a_crash_at_the_fourth_of_five() -> None:
    """C9: the fourth and the fifth go to the other member, in order; the first three do not."""
    lanes = group("ada", "bob", room=1)
    lanes.offer(0, [RED] * 5 + [BLUE] * 5)
    ended: list[tuple[str, int]] = []
    for _ in range(3):
        for batch in lanes.pick(0):
            ended += [(batch.member, offset) for offset in finish(lanes, batch)]
    assert [list(batch.offsets) for batch in lanes.pick(0)] == [[3], [8]]
    lanes.leave("bob", 1)
    finish(lanes, PickedBatch(lanes._picking._next_number - 2, "ada", [3], 1))
    ended += work_off(lanes, 1)
    assert [offset for member, offset in ended if member == "bob"] == [5, 6, 7]
    assert [offset for _, offset in ended if offset > 7] == [8, 9]
    assert lanes.describe().moved_lanes == 1
    assert lanes.unacked == 0


def test_table_7_three_long_delays_and_the_last_two_go_to_the_other() -> None:
    """C10: and it stays a member."""
    lanes = group("ada", "bob", room=1, slow_ack_ms=1_000)
    lanes.offer(0, [RED] * 5 + [BLUE] * 5)
    now_ms = 0
    ended: list[tuple[str, int]] = []
    ada, bob = lanes.pick(now_ms)
    for _ in range(3):
        now_ms += 100
        while [batch for batch in [bob] if batch.member == "bob"]:
            finish(lanes, bob, now_ms)
            following = lanes.pick(now_ms)
            if not following:
                break
            [bob] = following
        now_ms += 2_000
        ended += [("ada", offset) for offset in finish(lanes, ada, now_ms)]
        batches = lanes.pick(now_ms)
        if batches[0].member == "ada":
            [ada] = batches
    assert ended == [("ada", 0), ("ada", 1), ("ada", 2)]
    assert sent(batches) == {"bob": [3]}
    assert lanes.tick(now_ms) == [MemberSlow("ada", 1)]
    finish(lanes, batches[0], now_ms)
    assert work_off(lanes, now_ms) == [("bob", 4)]
    assert lanes.is_active("ada") and state_of(lanes, "ada").slow


def test_table_8_three_attempts_without_an_answer_make_a_member_inactive() -> None:
    """C9, C11"""
    lanes = group("ada", "bob", redelivery_ms=1_000)
    lanes.offer(0, [RED, BLUE] * 5)
    ada, bob = lanes.pick(0)
    finish(lanes, bob, 10, [1, 3])
    finish(lanes, bob, 20)
    for attempt in (2, 3):
        now_ms = 1_000 * (attempt - 1)
        assert lanes.tick(now_ms - 1) == []
        assert lanes.pick(now_ms - 1) == []
        assert lanes.tick(now_ms) == []
        assert lanes.pick(now_ms) == [PickedBatch(ada.number, "ada", [0, 2, 4, 6, 8], 1)]
    assert lanes.tick(3_000) == [MemberInactive("ada", "batch 1 was sent 3 times without an answer")]
    assert not lanes.is_active("ada")
    assert lanes.pick(3_000) == [PickedBatch(3, "bob", [0, 2, 4, 6, 8], 2)]
    with pytest.raises(Stale, match=r"Batch 1 of 'ada' was given to another member: drop the result\."):
        lanes.ack("ada", ada.number, None, 3_001)


def test_table_10_what_is_acked_is_never_sent_again() -> None:
    """C13, as far as it is a matter of lanes: also after everybody has left."""
    lanes = group("ada", "bob")
    progress = Progress()
    lanes.offer(0, [RED, BLUE] * 5)
    for batch in lanes.pick(0):
        for offset in finish(lanes, batch):
            progress.add(offset, offset + 1)
    lanes.leave("ada", 1)
    lanes.leave("bob", 1)
    lanes.join("ada", 2)
    lanes.grant("ada", 100)
    assert list(progress.gaps(0, 10)) == []
    lanes.offer(10, [RED])
    assert sent(lanes.pick(2)) == {"ada": [10]}
    with pytest.raises(InvalidRequest):
        lanes.offer(5, [RED])


# Lanes and loads.


def test_one_member_may_hold_several_lanes() -> None:
    """C3"""
    lanes = group("ada")
    lanes.offer(0, [RED, BLUE, ("eve", RED), RED])
    assert sent(lanes.pick(0)) == {"ada": [0, 1, 2, 3]}
    assert state_of(lanes, "ada").lanes == 3


def test_a_new_lane_goes_to_the_least_loaded_and_lanes_weigh_more_than_messages() -> None:
    """C4"""
    lanes = group("ada", "bob")
    lanes.offer(0, [RED] * 6 + [BLUE, GREEN])
    assert sent(lanes.pick(0)) == {"ada": [0, 1, 2, 3, 4, 5], "bob": [6, 7]}
    # Six messages in one lane weigh less than two messages in two.
    lanes.offer(8, [b"black"])
    assert sent(lanes.pick(0)) == {"ada": [8]}


def test_a_busy_lane_makes_its_member_the_last_choice() -> None:
    """C4"""
    lanes = group("ada", "bob")
    lanes.offer(0, [RED] * 40 + [BLUE, GREEN, b"black"])
    assert sent(lanes.pick(0)) == {"ada": list(range(40)), "bob": [40, 41, 42]}


def test_messages_without_a_key_even_out_what_lanes_made_uneven() -> None:
    """C4"""
    lanes = group("ada", "bob")
    lanes.offer(0, [RED, *[None] * 11])
    assert {member: len(offsets) for member, offsets in sent(lanes.pick(0)).items()} == {"ada": 2, "bob": 10}


def test_a_lane_stays_while_it_is_busy_and_is_free_when_idle() -> None:
    """C3, C14: the lane is forgotten with its last message."""
    lanes = group("ada", "bob")
    lanes.offer(0, [RED])
    [first] = lanes.pick(0)
    lanes.offer(1, [RED])
    [second] = lanes.pick(0)
    assert (first.member, second.member) == ("ada", "ada")
    finish(lanes, first)
    assert lanes.describe().lanes == 1
    finish(lanes, second)
    assert lanes.describe().lanes == 0
    lanes.offer(2, [BLUE, RED])
    assert sent(lanes.pick(0)) == {"ada": [2], "bob": [3]}


def test_a_lane_stays_until_the_journal_has_answered() -> None:
    """C3: else a refused ack would come after what follows it in its lane."""
    lanes = group("ada", "bob")
    lanes.offer(0, [RED])
    [batch] = lanes.pick(0)
    ack = lanes.ack("ada", batch.number, None, 1)
    lanes.offer(1, [BLUE, RED])
    [to_ada, to_bob] = lanes.pick(1)
    assert (list(to_ada.offsets), list(to_bob.offsets)) == ([2], [1])
    assert lanes.unack(ack) == [0]
    assert finish(lanes, batch) == [0]
    assert finish(lanes, to_ada) == [2]


def test_room_bounds_what_is_in_flight() -> None:
    lanes = group("ada", "bob", room=2)
    lanes.offer(0, [None] * 9)
    batches = lanes.pick(0)
    assert sent(batches) == {"ada": [0, 2], "bob": [1, 3]}
    assert lanes.pick(0) == []
    assert lanes.credit() == 0
    finish(lanes, batches[0], 0, [0])
    assert sent(lanes.pick(0)) == {"ada": [4]}


def test_what_an_earlier_life_may_have_sent_goes_out_as_repeated() -> None:
    """C8: the journal says what is acked, not what was sent."""
    lanes = Lanes(LaneSettings())
    lanes.join("ada", 0)
    lanes.grant("ada", 10)
    lanes.expect_redelivery(3)
    lanes.offer(0, [b"red", b"blue", b"red", b"red", b"blue"])
    batches = lanes.pick(0)
    assert [(list(batch.offsets), batch.attempt) for batch in batches] == [([0, 1, 2], 2), ([3, 4], 1)]
    lanes.leave("ada", 1)
    lanes.join("bob", 1)
    lanes.grant("bob", 10)
    assert [(list(batch.offsets), batch.attempt) for batch in lanes.pick(1)] == [([0, 1, 2, 3, 4], 2)]


def test_batches_are_of_limited_size() -> None:
    lanes = group("ada", batch_messages_max=4)
    lanes.offer(0, [RED] * 10)
    assert [list(batch.offsets) for batch in lanes.pick(0)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_the_window_bounds_what_is_unacked() -> None:
    lanes = group("ada", window_messages_max=10, room=50)
    assert lanes.credit() == 10
    lanes.offer(0, [RED] * 10)
    assert lanes.credit() == 0
    with pytest.raises(LimitReached, match="window_messages_max"):
        lanes.offer(10, [RED])
    [batch] = lanes.pick(0)
    finish(lanes, batch, 0, [0, 1, 2])
    assert lanes.credit() == 3


def test_a_member_without_room_gets_nothing_and_loses_what_waits() -> None:
    """C5"""
    lanes = group("ada", "bob", room=0)
    assert lanes.credit() == 0
    lanes.grant("ada", 1)
    lanes.offer(0, [RED] * 3)
    [batch] = lanes.pick(0)
    lanes.grant("bob", 5)
    lanes.grant("ada", 0)
    finish(lanes, batch)
    assert sent(lanes.pick(0)) == {"bob": [1, 2]}


def test_settings_must_make_sense() -> None:
    with pytest.raises(InvalidRequest, match="deliveries_max"):
        LaneSettings(deliveries_max=0)


# Coming late.


def test_a_late_member_gets_unbound_lanes_first_and_nothing_moves() -> None:
    """C5"""
    lanes = group("ada", room=2)
    lanes.offer(0, [b"%d" % number for number in range(8)])
    lanes.pick(0)
    lanes.join("bob", 1)
    lanes.grant("bob", 6)
    assert sent(lanes.pick(1)) == {"bob": [2, 3, 4, 5, 6, 7]}
    assert lanes.describe().moved_lanes == 0


def test_a_late_member_gets_waiting_lanes_at_once() -> None:
    """C5: those of which nothing is in flight."""
    lanes = group("ada", room=8)
    lanes.offer(0, [b"%d" % (number % 4) for number in range(8)])
    lanes.pick(0)
    lanes.grant("ada", 20)
    lanes.offer(8, [b"a", b"b", b"c", b"d"])
    lanes._pool.distribute(0)
    lanes.grant("ada", 8)
    assert state_of(lanes, "ada").waiting == 4
    lanes.join("bob", 1)
    lanes.grant("bob", 20)
    assert sent(lanes.pick(1)) == {"bob": [8, 9, 10, 11]}
    state = lanes.describe()
    assert (state.moved_lanes, state.evened_lanes, state.moving) == (4, 4, 0)
    assert lanes.tick(1) == [LanesMoved("bob", 4, 0)]


def test_a_lane_in_flight_is_handed_over_when_it_has_drained() -> None:
    """C5: in order, and the lane that stays is not paused."""
    lanes = group("ada")
    lanes.offer(0, [RED, BLUE] * 3)
    [batch] = lanes.pick(0)
    lanes.join("bob", 1)
    lanes.grant("bob", 100)
    assert lanes.pick(1) == []
    assert lanes.tick(1) == [LanesMoved("bob", 0, 1)]
    lanes.offer(6, [RED, BLUE])
    assert sent(lanes.pick(1)) == {"ada": [7]}, "one of the two lanes moves, the other goes on"
    finish(lanes, batch, 2, [0, 2])
    assert lanes.pick(2) == []
    finish(lanes, batch, 3, [4])
    assert sent(lanes.pick(3)) == {"bob": [6]}
    state = lanes.describe()
    assert (state.moved_lanes, state.evened_lanes, state.moving) == (1, 1, 0)


def test_a_join_moves_as_few_lanes_as_make_it_even() -> None:
    """C5: 100 lanes on two members; the third needs a third of them."""
    lanes = group("ada", "bob", room=1_000)
    keys: list[OrderingKey | None] = [b"%d" % number for number in range(100)]
    lanes.offer(0, keys)
    lanes.pick(0)
    lanes.join("cyd", 1)
    lanes.grant("cyd", 1_000)
    lanes.pick(1)
    [moved] = lanes.tick(1)
    assert moved == LanesMoved("cyd", 0, 33)
    assert sorted(each.lanes for each in lanes.describe().members) == [33, 33, 34]


def test_a_lane_that_drains_without_more_work_was_not_moved() -> None:
    """C5"""
    lanes = group("ada")
    lanes.offer(0, [RED, BLUE])
    [batch] = lanes.pick(0)
    lanes.join("bob", 1)
    lanes.grant("bob", 100)
    lanes.pick(1)
    finish(lanes, batch, 2)
    state = lanes.describe()
    assert (state.moved_lanes, state.lanes, [each.lanes for each in state.members]) == (0, 0, [0, 0])


def test_the_target_of_a_hand_over_may_be_gone_by_then() -> None:
    """C5, C9"""
    lanes = group("ada")
    lanes.offer(0, [RED, BLUE])
    [batch] = lanes.pick(0)
    lanes.join("bob", 1)
    lanes.grant("bob", 100)
    lanes.pick(1)
    lanes.offer(2, [RED, BLUE])
    lanes.pick(1)
    lanes.leave("bob", 2)
    finish(lanes, batch, 3)
    assert sent(lanes.pick(3)) == {"ada": [2]}


def test_an_idle_member_takes_a_lane_of_one_that_cannot_keep_up() -> None:
    """C4"""
    lanes = group("ada", "bob", room=3)
    lanes.offer(0, [GREEN] * 3)
    [ada] = lanes.pick(0)
    lanes.offer(3, [RED, BLUE] * 6)
    [bob] = lanes.pick(0)
    assert (list(ada.offsets), bob.member, list(bob.offsets)) == ([0, 1, 2], "bob", [3, 4, 5])
    finish(lanes, ada)
    assert lanes.pick(1) == []
    assert (state_of(lanes, "ada").lanes, state_of(lanes, "bob").waiting) == (0, 9)
    assert lanes.tick(1) == [LanesMoved("ada", 0, 1)]
    finish(lanes, bob)
    work = sent(lanes.pick(2))
    assert [len(offsets) for offsets in work.values()] == [3, 3]
    assert {offset % 2 for offset in work["ada"]} != {offset % 2 for offset in work["bob"]}


# Going, crashing, being slow.


def test_what_was_sent_counts_as_an_attempt_and_what_was_not_does_not() -> None:
    """C9"""
    lanes = group("ada", room=2)
    lanes.offer(0, [RED] * 4)
    lanes.pick(0)
    lanes.leave("ada", 1)
    assert lanes.attempts(1) == 1
    assert lanes.attempts(2) == 0
    lanes.join("bob", 2)
    lanes.grant("bob", 100)
    assert [(list(batch.offsets), batch.attempt) for batch in lanes.pick(2)] == [([0, 1], 2), ([2, 3], 1)]
    assert lanes.attempts(1) == 2


def test_only_what_is_unacked_goes_on() -> None:
    """C9"""
    lanes = group("ada", "bob")
    lanes.offer(0, [RED] * 5)
    [batch] = lanes.pick(0)
    finish(lanes, batch, 1, [0, 2])
    lanes.leave("ada", 2)
    assert sent(lanes.pick(2)) == {"bob": [1, 3, 4]}


def test_messages_without_a_key_go_on_too() -> None:
    """C9"""
    lanes = group("ada", room=2)
    lanes.offer(0, [None] * 3)
    lanes.pick(0)
    lanes.leave("ada", 1)
    lanes.join("bob", 1)
    lanes.join("cyd", 1)
    lanes.grant("bob", 9)
    lanes.grant("cyd", 9)
    assert sorted(offset for offsets in sent(lanes.pick(1)).values() for offset in offsets) == [0, 1, 2]


def test_a_member_dies_while_its_ack_is_being_written() -> None:
    """C9: its lane waits for the journal; then it goes on behind what was acked, or with it."""
    for accepted, expected in ((True, [1]), (False, [0, 1])):
        lanes = group("ada", "bob")
        lanes.offer(0, [RED])
        [batch] = lanes.pick(0)
        ack = lanes.ack("ada", batch.number, None, 1)
        lanes.leave("ada", 2)
        lanes.offer(1, [RED])
        assert lanes.pick(2) == []
        if accepted:
            lanes.confirm(ack)
        else:
            assert lanes.unack(ack) == []
        assert sent(lanes.pick(3)) == {"bob": expected}


def test_a_late_answer_of_a_member_that_was_replaced_is_refused() -> None:
    """C9: fenced by the number of the batch, also when the member is back under its name."""
    lanes = group("ada", "bob")
    lanes.offer(0, [RED])
    [batch] = lanes.pick(0)
    lanes.join("ada", 1)
    with pytest.raises(Stale, match="drop the result"):
        lanes.ack("ada", batch.number, None, 2)
    lanes.leave("ada", 3)
    with pytest.raises(Fenced):
        lanes.nack("ada", batch.number, None, 3, 0)
    with pytest.raises(Stale):
        lanes.extend("ada", batch.number, 3)
    with pytest.raises(Stale, match="join again"):
        lanes.grant("ada", 1)
    assert sent(lanes.pick(3)) == {"bob": [0]}


def test_an_answer_that_comes_twice_is_not_stale() -> None:
    """C11: its acknowledgement was lost; nothing is accepted a second time."""
    lanes = group("ada")
    lanes.offer(0, [RED, BLUE])
    [batch] = lanes.pick(0)
    assert finish(lanes, batch, 0, [0]) == [0]
    assert finish(lanes, batch, 0, [0, 1]) == [1]
    again = lanes.ack("ada", batch.number, None, 0)
    assert (list(again.offsets), again.refused) == ([], [])
    lanes.confirm(again)
    assert lanes.nack("ada", batch.number, [0], 0, 0) == []


def test_acked_batches_are_remembered_up_to_a_limit() -> None:
    lanes = group("ada", finished_max=2)
    batches = []
    for offset in range(3):
        lanes.offer(offset, [RED])
        batches += lanes.pick(0)
        finish(lanes, batches[-1])
    assert finish(lanes, batches[2]) == []
    with pytest.raises(Stale):
        lanes.ack("ada", batches[0].number, None, 0)


def test_a_member_that_works_batch_after_batch_is_not_asked_again() -> None:
    """C7: a long queue in flight is no silence."""
    lanes = group("ada", redelivery_ms=1_000, batch_messages_max=1)
    lanes.offer(0, [RED] * 5)
    batches = lanes.pick(0)
    for number, batch in enumerate(batches):
        now_ms = 900 * (number + 1)
        assert lanes.tick(now_ms) == []
        assert lanes.pick(now_ms) == []
        finish(lanes, batch, now_ms)


def test_a_batch_that_got_lost_among_others_is_sent_again() -> None:
    """C11"""
    lanes = group("ada", redelivery_ms=1_000, batch_messages_max=1)
    lanes.offer(0, [RED, BLUE])
    lost, other = lanes.pick(0)
    finish(lanes, other, 900)
    assert lanes.tick(1_000) == []
    assert lanes.pick(1_000) == [PickedBatch(lost.number, "ada", [0], 1)]
    assert finish(lanes, lost, 1_001) == [0]


def test_extending_restarts_the_time_of_a_batch() -> None:
    """C7"""
    lanes = group("ada", redelivery_ms=1_000)
    lanes.offer(0, [RED])
    [batch] = lanes.pick(0)
    for now_ms in range(900, 9_000, 900):
        lanes.extend("ada", batch.number, now_ms)
        assert lanes.tick(now_ms + 99) == []
        assert lanes.pick(now_ms + 99) == []
    finish(lanes, batch, 9_000)
    assert not state_of(lanes, "ada").slow


def test_an_inactive_member_gets_work_again_when_it_shows_life() -> None:
    """C7, C9: with no other member, everything waited for it."""
    lanes = group("ada", redelivery_ms=10, deliveries_max=1)
    lanes.offer(0, [RED, BLUE])
    lanes.pick(0)
    assert [type(notice) for notice in lanes.tick(10)] == [MemberInactive]
    assert (lanes.pick(11), lanes.credit()) == ([], 0)
    lanes.activate("ada")
    assert sent(lanes.pick(12)) == {"ada": [0, 1]}


def test_a_slow_member_gets_new_work_last_and_is_forgiven_in_time() -> None:
    """C10"""
    lanes = group("ada", "bob", room=4, slow_ack_ms=10, slow_acks_max=1, slow_window_ms=1_000)
    lanes.offer(0, [RED])
    [batch] = lanes.pick(0)
    finish(lanes, batch, 100)
    assert state_of(lanes, "ada").slow
    lanes.offer(1, [None] * 6)
    assert sent(lanes.pick(101)) == {"bob": [1, 2, 3, 4], "ada": [5, 6]}
    lanes.tick(1_100)
    assert not state_of(lanes, "ada").slow


def test_late_acks_are_counted() -> None:
    """C7, table 4: a delay is no fault; whoever looks sees how many there were, and the longest."""
    lanes = group("ada", room=1, delayed_ack_ms=300, slow_ack_ms=1_000)
    lanes.offer(0, [RED] * 3)
    now_ms = 0
    for took_ms in (300, 301, 2_000):
        [batch] = lanes.pick(now_ms)
        now_ms += took_ms
        finish(lanes, batch, now_ms)
    assert state_of(lanes, "ada").delays == (2, 1, 2_000)
    assert not state_of(lanes, "ada").slow


def test_a_slow_member_alone_keeps_its_lanes() -> None:
    """C10"""
    lanes = group("ada", room=1, slow_ack_ms=10, slow_acks_max=1)
    lanes.offer(0, [RED] * 3)
    [batch] = lanes.pick(0)
    finish(lanes, batch, 100)
    assert work_off(lanes, 100) == [("ada", 1), ("ada", 2)]
    assert lanes.tick(100) == []


# Failed messages.


def test_a_failed_message_comes_again_after_its_delay_and_its_lane_waits() -> None:
    """C3, C11: what the member has of the lane behind it is taken back too, at the same attempt."""
    lanes = group("ada")
    lanes.offer(0, [RED, BLUE, RED, RED])
    [batch] = lanes.pick(0)
    lanes.offer(4, [RED])
    [following] = lanes.pick(0)
    assert lanes.nack("ada", batch.number, [2], 10, 500) == [2, 3, 4]
    ack = lanes.ack("ada", batch.number, [1, 3], 20)
    assert (list(ack.offsets), ack.refused) == ([1], [3])
    lanes.confirm(ack)
    assert finish(lanes, following) == []
    assert lanes.pick(509) == []
    finish(lanes, batch, 509, [0])
    assert lanes.pick(509) == []
    assert [(list(each.offsets), each.attempt) for each in lanes.pick(510)] == [([2], 2), ([3, 4], 1)]


def test_other_lanes_do_not_wait_for_a_delay() -> None:
    """C3"""
    lanes = group("ada")
    lanes.offer(0, [RED, BLUE, None])
    [batch] = lanes.pick(0)
    assert lanes.nack("ada", batch.number, [0, 2], 0, 1_000) == [0, 2]
    lanes.offer(3, [RED, BLUE, None])
    assert sent(lanes.pick(1)) == {"ada": [4, 5]}
    assert sent(lanes.pick(1_000)) == {"ada": [0, 2, 3]}


def test_messages_that_fail_too_often_are_handed_out() -> None:
    """C11: for a dead-letter topic; their lane waits until that is journaled, and then goes on."""
    lanes = group("ada", attempts_max=2)
    lanes.offer(0, [RED, RED, None])
    for _ in range(2):
        assert lanes.exhausted() is None
        batches = lanes.pick(0)
        lanes.nack("ada", batches[0].number, [0], 0, 0)
        for batch in batches:
            if 2 in batch.offsets:
                lanes.nack("ada", batch.number, [2], 0, 0)
    spent = lanes.exhausted()
    assert spent is not None
    assert (list(spent.offsets), spent.member, spent.attempt) == ([0, 2], "", 2)
    assert lanes.exhausted() is None
    assert lanes.pick(0) == []
    assert lanes.unack(spent) == []
    spent = lanes.exhausted()
    assert spent is not None
    lanes.confirm(spent)
    assert work_off(lanes) == [("ada", 1)]
    assert lanes.unacked == 0


def test_a_refused_ack_behind_a_failed_message_is_taken_back() -> None:
    """C3: the member had worked out of order; now the lane goes on in order."""
    lanes = group("ada")
    lanes.offer(0, [RED, RED])
    [batch] = lanes.pick(0)
    ack = lanes.ack("ada", batch.number, [1], 1)
    lanes.nack("ada", batch.number, [0], 2, 0)
    assert lanes.unack(ack) == []
    assert sorted(offset for _, offset in work_off(lanes)) == [0, 1]


# After a restart.


def test_what_a_member_still_has_counts_as_in_flight_with_it() -> None:
    """C8"""
    lanes = Lanes(LaneSettings(), first_number=50)
    lanes.join("ada", 0)
    lanes.join("bob", 0)
    batch = lanes.claim("ada", [1, 3], [RED, None], 1, 0)
    assert batch == PickedBatch(50, "ada", [1, 3], 1)
    lanes.grant("ada", 10)
    lanes.grant("bob", 10)
    lanes.offer_some([1, 2, 3, 4, 5], [RED, BLUE, None, RED, BLUE])
    assert sent(lanes.pick(1)) == {"ada": [4], "bob": [2, 5]}
    assert finish(lanes, batch) == [1, 3]


def test_of_two_claims_the_higher_attempt_wins() -> None:
    """C8, C9: and the loser's batch is stale."""
    for key in (RED, None):
        lanes = group("ada", "bob", "cyd")
        first = lanes.claim("ada", [7], [key], 1, 0)
        assert first is not None
        assert lanes.claim("bob", [7], [key], 1, 0) is None
        second = lanes.claim("bob", [7], [key], 2, 0)
        assert second == PickedBatch(2, "bob", [7], 2)
        assert lanes.claim("cyd", [7], [key], 2, 0) is None
        with pytest.raises(Stale):
            lanes.ack("ada", first.number, None, 1)
        assert finish(lanes, second) == [7]
        assert lanes.claim("cyd", [7], [key], 9, 0) is None


def test_what_is_taken_from_its_owner_by_a_claim_is_marked_for_the_next_one() -> None:
    """C8, C9: all that the owner was sent of the lane, for it may be at work on any of it; and it is no failure."""
    lanes = group("ada", attempts_max=1)
    lanes.offer(0, [RED, RED])
    [owned] = lanes.pick(0)
    assert list(owned.offsets) == [0, 1]
    lanes.join("bob", 0)
    claimed = lanes.claim("bob", [0], [RED], 2, 0)
    assert claimed == PickedBatch(2, "bob", [0], 2)
    lanes.grant("bob", 10)
    assert lanes.exhausted() is None
    [rest] = lanes.pick(0)
    assert (rest.member, list(rest.offsets), rest.attempt) == ("bob", [1], 2)
    assert finish(lanes, claimed) == [0]
    assert finish(lanes, rest) == [1]
    assert lanes._handoff.attempts == {}


def test_a_claim_comes_after_others_got_to_work() -> None:
    """C8: it gets what is at the front of its lane and in no other hand."""
    lanes = group("ada", room=2)
    lanes.offer(0, [RED, BLUE, GREEN, GREEN, None, RED])
    assert sent(lanes.pick(0)) == {"ada": [0, 1]}
    lanes.join("bob", 0)
    assert lanes.claim("bob", [3, 4, 5], [GREEN, None, RED], 1, 0) == PickedBatch(2, "bob", [4], 1)
    assert lanes.claim("bob", [2, 3], [GREEN, GREEN], 1, 0) == PickedBatch(3, "bob", [2, 3], 1)


def test_an_ack_that_the_journal_refused_is_not_confirmed_when_it_is_repeated() -> None:
    """C11: its message was taken back meanwhile, and that is what the member is told."""
    lanes = group("ada")
    lanes.offer(0, [RED])
    [batch] = lanes.pick(0)
    whole = lanes.ack("ada", batch.number, None, 10)
    lanes.leave("ada", 20)
    lanes.join("ada", 20)
    lanes.unack(whole)
    assert lanes.ack("ada", batch.number, None, 30).refused == [0]


def test_claims_have_their_limits() -> None:
    lanes = group("ada")
    with pytest.raises(InvalidRequest):
        lanes.claim("ada", [0, 1], [None], 1, 0)
    with pytest.raises(Stale):
        lanes.claim("bob", [0], [None], 1, 0)


def test_a_full_window_keeps_nobody_from_claiming_what_it_has() -> None:
    """C8: the window bounds what is offered; what is in flight has been offered, now or in an earlier life."""
    lanes = group("ada", room=5, window_messages_max=2)
    lanes.offer(0, [RED, BLUE])
    lanes.pick(0)
    lanes.join("ada", 0)
    assert lanes.claim("ada", [0, 1, 2], [RED, BLUE, GREEN], 1, 0) == PickedBatch(2, "ada", [0, 1, 2], 1)
    assert lanes.credit() == 0


# Stories made at random, and whether the checks would notice.


@pytest.mark.parametrize("first_seed", range(0, 400, 50))
def test_stories_by_seed(first_seed: int) -> None:
    """C3, C5, C7, C8, C9, C10, C11: the model's promises hold at every step, and everything is acked in the end."""
    for seed in range(first_seed, first_seed + 50):
        run(seed, steps=200)


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 120))
def test_stories_that_can_be_made_shorter(rng: random.Random, steps: int) -> None:
    """C3, C9"""
    world = World()
    for _ in range(steps):
        step(world, rng)
    world.finish()


@pytest.mark.soak
def test_many_stories_by_seed() -> None:
    """C3, C5, C7, C8, C9, C10, C11"""
    for seed in range(10_000, 30_000):
        run(seed, steps=300)


TRACE = """
from tests.unit.protocols.broker.consumer_groups.group_model import run
print([run(seed, 200).order_of_ends for seed in range(10)])
"""


def test_a_seed_tells_the_same_story_in_every_process() -> None:
    traces = [
        subprocess.run(
            [sys.executable, "-c", TRACE],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert traces[0] == traces[1] != ""


class ForgetsTheJournal(KeyHandoff):
    """Lets the lanes of a lost member go on before the journal has answered."""

    def disown(self, member: Member, taken: Any = None, *, final: bool = True) -> None:
        member.acks = {}
        super().disown(member, taken, final=final)


class LosesSightOfLanes(KeyHandoff):
    """Does not remember that a lane stands in the line when more of it comes."""

    def release(self, lane: Lane) -> None:
        super().release(lane)
        if lane.hold is not None and lane.hold.lined_up and lane.key is not None:
            self.lanes.pop(lane.key, None)


class KeepsTheFollowers(Lanes):
    """Lets a member go on with what is behind a message that it gave back."""

    def _take_followers(self, member: Member, firsts: dict[Lane, int], touched: dict[Lane, None]) -> list[int]:
        return []


class DoesNotDrain(KeyHandoff):
    """Hands a lane over while some of it is in flight."""

    def even_out(self, target: Member, *, waiting_only: bool) -> None:
        super().even_out(target, waiting_only=waiting_only)
        for lane in list(self.lanes.values()):
            if lane.hold is not None and lane.hold.target is target and lane.count:
                under_way, lane.count = lane.count, 0
                if lane.hold.queue:
                    self.bind(lane, target)
                lane.count += under_way


class Forgives(Lanes):
    """Accepts the answer of a member that lost its work."""

    def _flight(self, name: str, number: int) -> tuple[Member, Flight | None]:
        try:
            return super()._flight(name, number)
        except Stale:
            for member in self._handoff.members.values():
                for flight in member.flights.values():
                    return member, flight
            raise


class SendsAgain(Lanes):
    """Forgets that a message is being acked when its batch is sent again."""

    def leave(self, member: str, now_ms: int) -> None:
        found = self._handoff.members[member]
        for ack in list(found.acks):
            self._handoff.take_back(found, 1, dict(zip(ack.offsets, ack.lanes, strict=True)), {}, failed=True)
            found.in_flight += len(ack.offsets)
        super().leave(member, now_ms)


def lanes_of(planted: type[Lanes] | type[KeyHandoff]) -> type[Lanes]:
    """Lanes with a planted bug, their own or that of their handoff."""
    if issubclass(planted, Lanes):
        return planted

    class Planted(Lanes):
        def __init__(self, settings: LaneSettings, first_number: int = 1) -> None:
            super().__init__(settings, first_number)
            self._handoff.__class__ = planted

    return Planted


class Blind(World):
    """Sees only what goes in and comes out."""

    def check_books(self) -> None:
        pass


@pytest.mark.parametrize("world", [World, Blind])
@pytest.mark.parametrize(
    "kind", [ForgetsTheJournal, LosesSightOfLanes, KeepsTheFollowers, DoesNotDrain, Forgives, SendsAgain]
)
def test_planted_bugs_are_noticed(kind: type[Lanes] | type[KeyHandoff], world: type[World]) -> None:
    with pytest.raises((AssertionError, KeyError)):
        _run_seeds(lanes_of(kind), world)


def _run_seeds(kind: type[Lanes], world: type[World]) -> None:
    for seed in range(200):
        run(seed, steps=200, kind=kind, world=world)
