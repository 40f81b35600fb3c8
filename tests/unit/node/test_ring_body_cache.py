"""The body cache of a ring's node: bodies and the deliveries that wait for them, all of it bounded (P12)."""

from __future__ import annotations

import pytest

from tidings.node.ring import body_cache as module
from tidings.node.ring.body_cache import FETCH_AFTER_MS, FETCH_MAX, KEPT_MS, WAIT_MS_MAX, BodyCache
from tidings.protocols.ring.messages import Bodies, Ref
from tidings.wire.codec import Frame

OWNER = "tcp://127.0.0.1:7001"


class Desk:
    """A body cache, and what it does."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, list[Frame]]] = []
        self.given_up: list[int] = []
        self.asked: list[tuple[str, tuple[Ref, ...]]] = []
        self.body_cache = BodyCache(
            lambda connection, frames: self.answers.append((connection, frames)),
            self.given_up.append,
            lambda owner, refs: self.asked.append((owner, refs)),
        )

    def show(self, now_ms: int, connection: int, *refs: Ref | None, behind: tuple[bytes, ...] = ()) -> None:
        self.body_cache.show(now_ms, connection, OWNER, refs, (b"header", *behind))

    def come(self, now_ms: int, *refs: Ref, owner: str = OWNER) -> None:
        self.body_cache.on_bodies(now_ms, Bodies(owner, refs), [body_of(ref) for ref in refs])


def ref(offset: int, size_bytes: int = 10) -> Ref:
    return Ref("news", offset, 1_000 + offset, size_bytes)


def body_of(ref: Ref) -> bytes:
    return bytes([ref.offset % 256]) * ref.size_bytes


def test_bodies_may_come_before_or_after_they_are_shown() -> None:
    desk = Desk()
    desk.come(0, ref(1))
    desk.show(0, 7, ref(1), None, ref(2), behind=(b"straight",))
    assert not desk.answers and desk.body_cache.has_line(7)
    desk.come(5, ref(2))
    assert desk.answers == [(7, [b"header", body_of(ref(1)), b"straight", body_of(ref(2))])]
    assert not desk.body_cache.has_line(7) and desk.body_cache.waiting_bytes == 0


def test_one_client_does_not_wait_for_the_bodies_of_another() -> None:
    desk = Desk()
    desk.show(0, 7, ref(1))
    desk.come(0, ref(2))
    desk.show(0, 8, ref(2))
    assert [connection for connection, _ in desk.answers] == [8]


def test_a_body_of_another_owner_or_size_is_another_body() -> None:
    desk = Desk()
    desk.show(0, 7, ref(1))
    desk.come(0, ref(1), owner="tcp://127.0.0.1:7002")
    desk.body_cache.on_bodies(0, Bodies(OWNER, (ref(1),)), [b"short"])
    assert not desk.answers


def test_a_delivery_that_lacks_a_body_without_a_reference_ends_the_connection() -> None:
    """Nobody sends that; but a gap would be worse than coming again."""
    desk = Desk()
    desk.show(0, 7, None)
    assert desk.given_up == [7] and not desk.answers


def test_questions_are_bounded_and_name_each_body_once() -> None:
    desk = Desk()
    refs = [ref(number) for number in range(FETCH_MAX + 1)]
    for connection in (7, 8):
        desk.show(0, connection, *refs)
    desk.body_cache.tick(FETCH_AFTER_MS - 1)
    assert not desk.asked
    desk.body_cache.tick(FETCH_AFTER_MS)
    assert [len(asked) for _, asked in desk.asked] == [FETCH_MAX, 1]


def test_nothing_is_asked_for_clients_that_have_gone() -> None:
    desk = Desk()
    desk.show(0, 7, ref(1))
    desk.body_cache.forget(7)
    desk.body_cache.tick(FETCH_AFTER_MS)
    assert not desk.asked and desk.body_cache.waiting_bytes == 0
    desk.come(50, ref(1))
    desk.body_cache.tick(WAIT_MS_MAX)
    assert not desk.answers and not desk.given_up


def test_all_who_wait_for_what_never_comes_are_sent_away() -> None:
    desk = Desk()
    for connection in (7, 8):
        desk.show(0, connection, ref(1), ref(2))
    desk.body_cache.tick(WAIT_MS_MAX - 1)
    assert not desk.given_up
    desk.body_cache.tick(WAIT_MS_MAX)
    assert desk.given_up == [7, 8] and not desk.body_cache.has_line(7)


def test_the_oldest_bodies_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_MAX", 3)
    monkeypatch.setattr(module, "KEPT_BYTES_MAX", 100)
    desk = Desk()
    desk.come(0, *[ref(number) for number in range(4)])
    assert len(desk.body_cache) == 3
    desk.come(1, ref(9, 85))
    assert len(desk.body_cache) == 2 and desk.body_cache.kept_bytes == 95
    desk.show(1, 7, ref(3), ref(9, 85))
    assert len(desk.answers) == 1
    desk.body_cache.tick(KEPT_MS + 1)
    assert len(desk.body_cache) == 1
    desk.body_cache.tick(KEPT_MS + 2)
    assert len(desk.body_cache) == desk.body_cache.kept_bytes == 0


@pytest.mark.parametrize("bound", ["LINE_MAX", "LINE_BYTES_MAX", "WAITING_BYTES_MAX", "MISSING_MAX"])
def test_a_client_for_whom_too_much_waits_is_sent_away(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, bound, 30 if "BYTES" in bound else 3)
    desk = Desk()
    for number in range(3):
        desk.show(0, 7, ref(number))
    assert not desk.given_up
    desk.body_cache.stand_behind(7, [b"a long answer "])
    desk.show(0, 7, ref(4))
    assert desk.given_up[:1] == [7]
    desk.come(1, ref(0), ref(1), ref(2))
    assert not desk.answers
