"""Planted bugs of groups: who gets what, what counts as acked, and what a restart remembers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from tidings.client.member import Member as ClientMember
from tidings.protocols.broker import messages
from tidings.protocols.broker.consumer_groups.claims import Claims
from tidings.protocols.broker.consumer_groups.distribution import Distribution
from tidings.protocols.broker.consumer_groups.groups import GroupState
from tidings.protocols.broker.consumer_groups.lanes import Lanes
from tidings.protocols.broker.consumer_groups.members import Lane, PendingAck, Stale
from tidings.protocols.broker.consumer_groups.progress import Progress
from tidings.protocols.broker.consumer_groups.sharing import Sharing
from tidings.protocols.effects import Send
from tidings.simulator.checkers.rules import ACKED, LANES, MARKED, OWNER, PROGRESS, RECOVERY, STALE, UNTAKEN
from tidings.simulator.planting import mutant, patched

WORLD = "groups"


@mutant(
    "accept-late-settlement",
    "what a lost member acks is accepted although others have it",
    STALE,
    world=WORLD,
)
def _accept_late_ack() -> Iterator[None]:
    def ack(original: Any) -> Any:
        def planted(self: Lanes, member: str, number: int, offsets: Any, now_ms: int) -> PendingAck:
            flights: dict[tuple[str, int], list[int]] = self.__dict__.setdefault("planted", {})
            try:
                found: PendingAck = original(self, member, number, offsets, now_ms)
            except Stale:
                acked = flights.get((member, number), [])
                return PendingAck(None, number, 1, acked, [], [])
            return found

        return planted

    def note(original: Any) -> Any:
        def planted(self: Lanes, *rest: Any) -> Any:
            picked = original(self, *rest)
            for batch in picked if isinstance(picked, list) else filter(None, (picked,)):
                self.__dict__.setdefault("planted", {})[batch.member, batch.number] = list(batch.offsets)
            return picked

        return planted

    with patched(Lanes, "ack", ack), patched(Lanes, "pick", note), patched(Lanes, "claim", note):
        yield


@mutant("move-undrained", "a lane goes to another member while something of it is in flight", LANES, OWNER, world=WORLD)
def _move_undrained() -> Iterator[None]:
    def make(distribute: Any) -> Any:
        def planted(self: Distribution, now_ms: int) -> None:
            distribute(self, now_ms)
            handoff = self._handoff
            members = [member for member in handoff.members.values() if member.active and member.free > 0]
            for lane in list(handoff.lanes.values()):
                target = next((member for member in members if member is not lane.member), None)
                if lane.hold is None and lane.member is not None and target is not None and lane.member.in_flight:
                    lane.member.burden -= handoff.weight
                    lane.member = target
                    target.burden += handoff.weight

        return planted

    with patched(Distribution, "distribute", make):
        yield


@mutant("drop-on-leave", "what a member has in flight when it leaves is given to nobody", PROGRESS, LANES, world=WORLD)
def _drop_on_leave() -> Iterator[None]:
    def make(leave: Any) -> Any:
        def planted(self: Lanes, member: str, now_ms: int, taken: Any = None) -> None:
            for number in list(self._member(member).flights):
                self.confirm(self.ack(member, number, None, now_ms))
            leave(self, member, now_ms, taken)

        return planted

    with patched(Lanes, "leave", make):
        yield


@mutant("snapshot-without-islands", "the snapshot keeps only the mark of a group's progress", RECOVERY, world=WORLD)
def _snapshot_without_ranges() -> Iterator[None]:
    def make(restore: Any) -> Any:
        def planted(self: GroupState) -> Any:
            group = restore(self)
            group.progress = Progress(group.progress.low)
            return group

        return planted

    with patched(GroupState, "restore", make):
        yield


@mutant("offer-from-mark", "everything above the mark is offered, what is acked there included", ACKED, world=WORLD)
def _offer_from_mark() -> Iterator[None]:
    def make(gaps: Any) -> Any:
        def planted(self: Progress, start: int, end: int) -> Iterator[tuple[int, int]]:
            yield max(start, self.low), end

        return planted

    with patched(Progress, "gaps", make):
        yield


@mutant("ignore-claims", "what a member has in flight is confirmed and given to others too", LANES, OWNER, world=WORLD)
def _ignore_claims() -> Iterator[None]:
    def make(begin: Any) -> Any:
        def planted(self: Sharing, now_ms: int, coordinator: Any, peer: Any, message: messages.Work, keys: Any) -> Any:
            effects = begin(self, now_ms, coordinator, peer, message, {})
            kept = tuple(
                messages.Kept(1_000_000 + index, held.attempt, tuple(coordinator.group.progress.gaps(start, end)))
                for index, held in enumerate(message.held)
                for start, end in held.ranges
            )
            return [Send(peer, messages.Working(message.request, message.stream, kept)), *effects[1:]]

        return planted

    with patched(Sharing, "_begin", make):
        yield


@mutant("no-grace", "after a restart work is given out before its workers have come back", OWNER, MARKED, world=WORLD)
def _no_grace() -> Iterator[None]:
    with patched(Sharing, "recovered", lambda _: lambda self: None):
        yield


@mutant("forget-attempts", "after a restart what dead members had in flight goes out as new", MARKED, world=WORLD)
def _forget_attempts() -> Iterator[None]:
    with patched(Lanes, "expect_redelivery", lambda _: lambda self, until: None):
        yield


@mutant(
    "keep-what-waited",
    "a member that comes back keeps as new what it had not handed out, though others may have worked on it",
    MARKED,
    world=WORLD,
)
def _keep_what_waited() -> Iterator[None]:
    with patched(Lanes, "is_first", lambda _: lambda self, offset, attempt: True):
        yield


@mutant("short-lease", "a member is given up after a quarter of its lease", OWNER, world=WORLD)
def _short_lease() -> Iterator[None]:
    def make(on_tick: Any) -> Any:
        def planted(self: Sharing, now_ms: int, heard_at_ms: dict[str, int]) -> Any:
            early = self._machine.settings.lease_ms * 3 // 4
            return on_tick(self, now_ms, {name: at_ms - early for name, at_ms in heard_at_ms.items()})

        return planted

    with patched(Sharing, "on_tick", make):
        yield


@mutant(
    "forget-ousted",
    "what a claim takes from a member at work comes to the next one as new",
    MARKED,
    world=WORLD,
)
def _forget_ousted() -> Iterator[None]:
    def make(oust: Any) -> Any:
        def planted(self: Claims, lane: Lane, *rest: Any) -> None:
            oust(self, lane, *rest)
            for offset in lane.hold.queue if lane.hold is not None else ():
                self._handoff.attempts.pop(offset, None)

        return planted

    with patched(Claims, "_oust", make):
        yield


@mutant("give-before-durable", "what is being acked is given out again meanwhile", ACKED, STALE, world=WORLD)
def _give_before_durable() -> Iterator[None]:
    def make(on_group_ack: Any) -> Any:
        def planted(self: Sharing, now_ms: int, peer: Any, message: messages.GroupAck) -> Any:
            effects = on_group_ack(self, now_ms, peer, message)
            for effect in effects:
                for ack in getattr(getattr(effect, "origin", None), "acks", ()):
                    coordinator = self._coordinators[effect.origin.key]
                    coordinator.lanes.unack(ack)
                    with suppress(Stale):
                        coordinator.lanes.nack(message.client, ack.number, ack.offsets, now_ms, 0)
            return effects

        return planted

    with patched(Sharing, "on_group_ack", make):
        yield


@mutant("settle-all-in-hand", "the client acks what it was sent and has not handed out", UNTAKEN, world=WORLD)
def _ack_all_in_flight() -> Iterator[None]:
    def make(acks: Any) -> Any:
        def planted(self: ClientMember) -> Any:
            found = acks(self)
            return tuple(messages.BatchRanges(each.batch) for each in found)

        return planted

    with patched(ClientMember, "acks", make):
        yield
