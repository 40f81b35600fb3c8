"""Which member of a group is asked next, event by event."""

from __future__ import annotations

import pytest

from tidings.client.route import (
    ADDRESSES_MAX,
    PATIENCE_MS,
    PAUSE_MS,
    PAUSE_MS_MAX,
    REDIRECTS_MAX,
    Route,
    is_address,
    split_addresses,
)
from tidings.errors import InvalidRequest

A, B, C, D = (f"tcp://{name}:7400" for name in "abcd")
TIMEOUT_MS = 2_500

NO_ADDRESSES = [
    "",
    "a:7400",
    "tcp://a",
    "tcp://a:",
    "tcp://:7400",
    "tcp://a:0",
    "tcp://a:65536",
    "tcp://a:7400 ",
    "tcp://a:7400\n",
    "tcp://a/b:7400",
    "tcp://eth0;a:7400",
    "tcp://*:7400",
    "tcp://-a:7400",
    "tcp://a:*",
    "tcp://ä:7400",
    "tcp://a:७४००",
    "tcp://a:7400,tcp://b:7400",
    "ipc:///tmp/a:7400",
    "inproc://a:7400",
    "udp://a:7400",
    "tcp://" + "a" * 200 + ":7400",
]


@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_only_tcp_host_port_is_ever_followed(text: str) -> None:
    """P6: whatever somebody who does not lead may say."""
    assert not is_address(text)
    route = Route((A, B))
    assert not route.on_not_leader(0, text, (text, C))
    assert route.at == A
    assert route.known == (A, B, C)


@pytest.mark.parametrize("text", [A, "tcp://10.0.0.1:1", "tcp://a-b.c_d.example:65535", "tcp://[fe80::1%eth0]:7400"])
def test_what_is_an_address(text: str) -> None:
    assert is_address(text)


def test_addresses_as_people_write_them() -> None:
    assert split_addresses(f"{A}, {B} ,{A}") == (A, B)
    for wrong in (f"{A},", f"{A},b:7400", f"{A},ipc://x", ",".join(f"tcp://a:{port}" for port in range(1, 18))):
        with pytest.raises(InvalidRequest):
            split_addresses(wrong)


@pytest.mark.parametrize("text", ["the broker", "/data", "ipc:///tmp/a,tcp://b:7400", "tcp://eth0;a:7400"])
def test_what_leads_to_no_group_is_left_to_the_link(text: str) -> None:
    route = Route.of(text)
    assert (route.at, route.grouped, route.known) == (None, False, ())


def test_a_single_broker_is_no_group() -> None:
    route = Route.of(A)
    assert (route.at, route.grouped) == (A, False)
    route.learn((A,))
    assert not route.grouped
    route.learn((A, B, C))
    assert (route.grouped, route.known) == (True, (A, B, C))


def test_what_the_user_gave_stays_and_the_number_is_bounded() -> None:
    route = Route((A, B))
    route.learn(tuple(f"tcp://a:{port}" for port in range(1, 100)))
    assert len(route.known) == ADDRESSES_MAX
    assert route.known[:2] == (A, B)
    route.learn((C,))
    assert route.known == (A, B, C)  # Members that have gone are forgotten.


def test_silence_moves_on_to_anyone_who_has_been_silent_least() -> None:
    route = Route((A, B, C))
    visited = []
    for now_ms in range(7):
        route.move_on(now_ms)
        visited.append(route.at)
    assert visited == [B, C, A, B, C, A, B]


def test_patience_doubles_where_nobody_answered_and_follows_what_answers_take() -> None:
    route = Route((A, B))
    assert route.due_ms(1_000, TIMEOUT_MS) == 1_000 + PATIENCE_MS
    assert route.due_ms(None, TIMEOUT_MS) is None
    route.move_on(2_000)
    assert route.due_ms(1_000, TIMEOUT_MS) == 2_000 + PATIENCE_MS
    route.move_on(3_000)
    assert (route.at, route.due_ms(1_000, TIMEOUT_MS)) == (A, 3_000 + 2 * PATIENCE_MS)
    route.on_answer(3_400, 1_000)  # It took 400 ms here.
    assert route.due_ms(3_500, TIMEOUT_MS) == 3_500 + 4 * 400
    for _ in range(20):
        route.on_answer(4_000, 3_990)
    assert route.due_ms(4_000, TIMEOUT_MS) == 4_000 + PATIENCE_MS


def test_anyone_who_is_heard_is_alive_but_a_request_is_not_waited_for_for_ever() -> None:
    route = Route((A, B))
    route.heard_ms = 1_400
    assert route.due_ms(1_000, TIMEOUT_MS) == 1_400 + PATIENCE_MS
    route.heard_ms = 3_400
    assert route.due_ms(1_000, TIMEOUT_MS) == 1_000 + TIMEOUT_MS


def test_a_short_time_out_stays_short() -> None:
    assert Route((A, B)).due_ms(1_000, 20) == 1_020


def test_a_named_leader_is_gone_to_at_once() -> None:
    """P6."""
    route = Route((A,))
    assert route.on_not_leader(10, C, (A, B, C))
    assert (route.at, route.grouped, route.pause_ends_ms) == (C, True, None)
    assert set(route.known) == {A, B, C}


def test_a_leader_may_be_one_that_nobody_lists() -> None:
    route = Route((A,))
    assert route.on_not_leader(10, D, ())
    route.move_on(600)
    assert (route.at, route.known) == (A, (A, D))


def test_pauses_grow_while_nobody_leads_and_every_member_is_asked() -> None:
    route, now_ms, pauses, visited = Route((A, B, C)), 0, [], []
    for _ in range(5):
        assert not route.on_not_leader(now_ms, "", ())
        assert route.pause_ends_ms is not None
        assert route.due_ms(None, TIMEOUT_MS) == route.pause_ends_ms
        pauses.append(route.pause_ends_ms - now_ms)
        now_ms = route.pause_ends_ms
        route.move_on(now_ms)
        visited.append(route.at)
    assert pauses == [50, 100, 200, 200, 200]
    assert visited == [B, C, A, B, C]
    route.on_answer(now_ms, now_ms)
    route.on_not_leader(now_ms, "", ())
    assert route.pause_ends_ms == now_ms + PAUSE_MS


def test_a_pause_is_not_prolonged_and_ends_when_a_leader_is_named() -> None:
    route = Route((A, B, C))
    route.on_not_leader(0, "", ())
    route.on_not_leader(50, "", ())
    assert route.pause_ends_ms == PAUSE_MS
    assert route.on_not_leader(60, B, ())
    assert (route.at, route.pause_ends_ms) == (B, None)


def test_a_member_that_names_itself_leads_nobody() -> None:
    route = Route((A, B))
    assert not route.on_not_leader(0, A, (A, B))
    assert route.pause_ends_ms == PAUSE_MS


def test_members_that_point_at_each_other_are_not_followed_without_pauses() -> None:
    """P6: two confused members cannot make a client spin."""
    route, now_ms, quick = Route((A, B)), 0, 0
    while route.on_not_leader(now_ms, B if route.at == A else A, ()):
        quick += 1
        assert quick < 100
    assert quick == REDIRECTS_MAX
    moves = 0
    while now_ms < 10_000:
        assert route.pause_ends_ms is not None
        now_ms = route.pause_ends_ms
        route.move_on(now_ms)
        moves += 1
        while route.on_not_leader(now_ms, B if route.at == A else A, ()):
            moves += 1
    assert moves <= 2 * (10_000 // PAUSE_MS_MAX + 3)
    route.on_answer(now_ms, now_ms)
    assert route.on_not_leader(now_ms, D, ())


def test_a_leader_that_was_silent_is_believed_only_after_some_pauses() -> None:
    """P6: it is dead, and the others have not noticed yet; or it is only slow, and they are right."""
    route, now_ms = Route((A, B, C)), 500
    route.move_on(now_ms)
    visited = [route.at]
    while not route.on_not_leader(now_ms, A, (A, B, C)):
        assert route.pause_ends_ms is not None
        now_ms = route.pause_ends_ms
        route.move_on(now_ms)
        visited.append(route.at)
    assert visited == [B, C] * 4
    assert (route.at, now_ms) == (A, 500 + 50 + 100 + 5 * 200)


def test_after_giving_up_everything_begins_afresh() -> None:
    route = Route((A, B))
    route.move_on(0)
    route.on_not_leader(0, "", ())
    route.begin_afresh()
    assert route.pause_ends_ms is None
    assert route.on_not_leader(0, A, ())
