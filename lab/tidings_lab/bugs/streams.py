"""Planted bugs of members' streams: how they begin, what comes on them, and what is made of it.

Most of these have been in the code once. A seed that found one is kept in the tests, with the bug's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from tidings.client.member import Member
from tidings.client.request import Request
from tidings.client.session import Session
from tidings.protocols.broker import messages
from tidings.protocols.broker.consumer_groups.groups import Group
from tidings.protocols.broker.consumer_groups.progress import compress
from tidings.protocols.broker.consumer_groups.sharing import Sharing, spread
from tidings.simulator.checkers.rules import ACKED, LANES, MARKED, OWNER, PROGRESS, SAID, STALE
from tidings.simulator.planting import mutant, patched

WORLD = "groups"


@mutant(
    "begin-before-claims", "a stream gets work before it is known what its member has", LANES, OWNER, STALE, world=WORLD
)
def _begin_before_claims() -> Iterator[None]:
    def make(begin: Any) -> Any:
        def planted(self: Sharing, now_ms: int, coordinator: Any, peer: Any, message: messages.Work, keys: Any) -> Any:
            working, *given = begin(self, now_ms, coordinator, peer, msgspec.structs.replace(message, held=()), {})
            kept = []
            for held in message.held:
                offsets = [each for each in spread(held.ranges) if each in keys]
                offsets = [each for each in offsets if not coordinator.group.progress.done(each)]
                batch = coordinator.lanes.claim(
                    message.client, offsets, [keys[each] for each in offsets], held.attempt, now_ms
                )
                if batch is not None:
                    kept.append(messages.Kept(batch.number, batch.attempt, tuple(compress(batch.offsets))))
            answer = msgspec.structs.replace(working.message, kept=tuple(kept))
            return [*given, msgspec.structs.replace(working, message=answer)]

        return planted

    with patched(Sharing, "_begin", make):
        yield


@mutant(
    "begin-while-settling",
    "a stream begins while it is not known what becomes of its member's ack",
    STALE,
    ACKED,
    LANES,
    world=WORLD,
)
def _begin_while_acking() -> Iterator[None]:
    def make(on_beginning: Any) -> Any:
        def planted(self: Sharing, now_ms: int, coordinator: Any, peer: Any, message: messages.Work) -> Any:
            acking, coordinator.acking = coordinator.acking, {}
            try:
                return on_beginning(self, now_ms, coordinator, peer, message)
            finally:
                coordinator.acking = acking

        return planted

    with patched(Sharing, "_on_beginning", make):
        yield


@mutant(
    "room-begins-stream",
    "a request for more room begins a stream that the broker has forgotten",
    OWNER,
    world=WORLD,
)
def _room_begins_stream() -> Iterator[None]:
    def make(on_work: Any) -> Any:
        def planted(self: Sharing, now_ms: int, peer: Any, message: messages.Work) -> Any:
            return on_work(self, now_ms, peer, msgspec.structs.replace(message, begins=True))

        return planted

    with patched(Sharing, "on_work", make):
        yield


@mutant(
    "begin-old-stream",
    "a stream that has ended begins again when its request comes late",
    OWNER,
    LANES,
    world=WORLD,
)
def _begin_old_stream() -> Iterator[None]:
    def make(on_work: Any) -> Any:
        def planted(self: Sharing, now_ms: int, peer: Any, message: messages.Work) -> Any:
            for coordinator in self._coordinators.values():
                coordinator.begun.clear()
            return on_work(self, now_ms, peer, message)

        return planted

    with patched(Sharing, "on_work", make):
        yield


@mutant("settled-by-anybody", "a member is told that it has acked what another has", STALE, world=WORLD)
def _acked_by_anybody() -> Iterator[None]:
    def make(_: Any) -> Any:
        def planted(self: Sharing, group: Group, message: messages.Work) -> Any:
            in_flight = [offset for held in message.held for offset in spread(held.ranges)]
            return tuple(compress([offset for offset in in_flight if group.progress.done(offset)]))

        return planted

    with patched(Sharing, "_acked_before", make):
        yield


@mutant(
    "acknowledge-old-copy",
    "what was made of a lost copy acks the one that came after it",
    STALE,
    world=WORLD,
)
def _acknowledge_old_copy() -> Iterator[None]:
    def make(_: Any) -> Any:
        def planted(self: Member, offset: int, attempt: int) -> bool:
            return offset in self.in_flight and not self.waits(offset)

        return planted

    with patched(Member, "has", make):
        yield


@mutant("ignore-turns", "batches are taken as they come, late ones and repetitions too", LANES, ACKED, world=WORLD)
def _ignore_turns() -> Iterator[None]:
    def make(_: Any) -> Any:
        def planted(self: Member, turn: int, take: Callable[[], None]) -> None:
            self.turn = max(self.turn, turn)
            take()

        return planted

    with patched(Member, "in_turn", make):
        yield


@mutant("ignore-gaps", "a batch that leaves a gap is taken", LANES, PROGRESS, world=WORLD)
def _ignore_gaps() -> Iterator[None]:
    def make(_: Any) -> Any:
        def planted(self: Member, turn: int, take: Callable[[], None]) -> None:
            if turn > self.turn:
                self.turn = turn
                take()

        return planted

    with patched(Member, "in_turn", make):
        yield


@mutant(
    "keep-waiting",
    "an acknowledgement of work that has gone to another is never answered",
    PROGRESS,
    world=WORLD,
)
def _keep_waiting() -> Iterator[None]:
    def make(_: Any) -> Any:
        def planted(self: Member, offsets: Sequence[int]) -> None:
            pass

        return planted

    with patched(Member, "_refuse_waiters", make):
        yield


@mutant(
    "hold-forever",
    "what waits for an answer goes on waiting when nobody wants the answer",
    PROGRESS,
    world=WORLD,
)
def _hold_forever() -> Iterator[None]:
    def make(forget: Any) -> Any:
        def planted(self: Session, request: Request) -> None:
            if self._outstanding.pop(request.number, None) is not None:
                request.identity.outstanding -= 1
            else:
                forget(self, request)

        return planted

    with patched(Session, "forget", make):
        yield


@mutant(
    "hand-out-while-claiming",
    "a member hands out what it has just said not to be handed out",
    SAID,
    MARKED,
    world=WORLD,
)
def _hand_out_while_claiming() -> Iterator[None]:
    def planted(self: Member) -> bool:
        return bool(self._queue) and not self.nacks

    with patched(Member, "ready", lambda _: planted):
        yield
