"""The taking end of a handoff, at the leader of the group that is to own something.

What it takes, from whom, and how much of it is there stands in the journal: it asks for the next piece by what is
applied, writes what it gets into the journal, and waits until it sees it there. While the source goes on working, it
goes through the topics again and again, until one time so little was new that the source may stop: it says so
(`Ready`), and takes the rest. With the last fact there, one command makes the ranges its own.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tidings.protocols.broker.commands import Command
from tidings.protocols.broker.machine import Machine
from tidings.protocols.effects import Effect, Persist
from tidings.protocols.ring.commands import Facts, Load, LoadedTopic, Seek, TakeOver
from tidings.protocols.ring.facts import END, TOPICS, Mark, Staged
from tidings.protocols.ring.handoff_messages import Clash, HandedOff, Nothing, Piece, Pull, Ready, TakenOver, ToGroup
from tidings.protocols.ring.handoff_source import FindDescriptor
from tidings.protocols.ring.key_ranges import KeyRanges, finder, point_of, without
from tidings.protocols.ring.limits import Limits
from tidings.protocols.ring.messages import GroupDescriptor
from tidings.protocols.ring.ownership import Ownership, TakingOver
from tidings.protocols.ring.patience import Patience
from tidings.protocols.ring.policy import ring_of

_facts_decoder = msgspec.msgpack.Decoder(Facts)


class HandoffTarget:
    """Asks for what is taken, and writes it down."""

    def __init__(self, machine: Machine, find_descriptor: FindDescriptor, limits: Limits) -> None:
        self._machine = machine
        self._limits = limits
        self._find_descriptor = find_descriptor
        self._patience = Patience()
        self._wished: tuple[KeyRanges, GroupDescriptor] | None = None
        self._source: GroupDescriptor | None = None
        self._sought: TakingOver | None = None
        """What was being taken when this was last looked at."""
        self._ask_at_ms = 0
        self._heard_at_ms = 0
        self._number = 0
        self._start = ""
        self._round_bytes = 0
        self._rounds = 0
        self._is_ready = False
        self.clashes: list[str] = []
        """Topics of sources that were in the way of what is brought; the host takes them out."""

    @property
    def has_wish(self) -> bool:
        return self._wished is not None

    @property
    def is_seeking(self) -> bool:
        """Whether a command is on its way, as far as is known."""
        return self._patience.is_set

    def wish(self, ranges: KeyRanges, source: GroupDescriptor) -> None:
        """These ranges are wanted of that group, unless others are already."""
        ring = ring_of(self._machine)
        if self._wished is None and (ring is None or ring.taking_over is None):
            self._wished = (ranges, source)

    def tick(self, now_ms: int, ring: Ownership, descriptor: GroupDescriptor) -> list[Effect]:
        """Goes on with what is taken, if it is time."""
        if self._patience.is_waiting(now_ms):
            return []
        effects = self._look(now_ms, ring, descriptor)
        taking_over = ring.taking_over
        if taking_over is None:
            return effects + self._begin(now_ms, ring)
        if taking_over.mark == END:
            return [
                *effects,
                self._persist(
                    now_ms, TakeOver(taking_over.source, taking_over.number), lambda: ring.taking_over != taking_over
                ),
            ]
        if not taking_over.number and now_ms - self._heard_at_ms >= self._limits.give_up_ms:
            return [*effects, self._persist(now_ms, Seek(b"", ()), lambda: ring.taking_over != taking_over)]
        if now_ms < self._ask_at_ms:
            return effects
        self._ask_at_ms = now_ms + self._limits.ask_again_ms
        return effects + self._ask(now_ms, ring, taking_over, descriptor)

    def _look(self, now_ms: int, ring: Ownership, descriptor: GroupDescriptor) -> list[Effect]:
        """Sees what has become of what was taken, and begins again with anything else."""
        before, self._sought = self._sought, ring.taking_over
        taken: list[Effect] = []
        if before is not None and ring.taken_over.get(before.source) == before.number != 0:
            source = self._descriptor_of(before.source)
            taken = [ToGroup(source, TakenOver(descriptor, before.source, before.number))] if source is not None else []
        now = ring.taking_over
        if now is not None and (before is None or (before.source, before.number) != (now.source, now.number)):
            self._ask_at_ms = self._heard_at_ms = now_ms
            self._start, self._round_bytes, self._rounds, self._is_ready = "", 0, 0, False
        return taken

    def _begin(self, now_ms: int, ring: Ownership) -> list[Effect]:
        if self._wished is None:
            return []
        (wished, source), self._wished = self._wished, None
        ranges = without(wished, (*ring.ranges, *(ring.handing_off.ranges if ring.handing_off else ())))
        if not ranges:
            return []
        self._source = source
        return [self._persist(now_ms, Seek(source.group, ranges), lambda: ring.taking_over is not None)]

    def _ask(self, now_ms: int, ring: Ownership, taking_over: TakingOver, descriptor: GroupDescriptor) -> list[Effect]:
        source = self._descriptor_of(taking_over.source)
        if source is None:
            return []
        self._number = max(self._number + 1, now_ms)
        start = self._start
        if taking_over.number:
            start = taking_over.mark.name if taking_over.mark.kind == TOPICS else ""
        have, until = self._have(ring, taking_over, start) if taking_over.mark.kind == TOPICS else ((), "")
        vacant = ring.strays_in(taking_over.ranges) if ring.strays and not taking_over.number else ()
        pull = Pull(
            descriptor,
            taking_over.source,
            taking_over.ranges,
            self._number,
            start,
            taking_over.mark,
            have,
            until,
            vacant,
        )
        effects: list[Effect] = [ToGroup(source, pull)]
        if self._is_ready and not taking_over.number:
            effects.insert(0, ToGroup(source, Ready(descriptor, taking_over.source, taking_over.ranges, vacant)))
        return effects

    def _have(self, ring: Ownership, taking_over: TakingOver, start: str) -> tuple[tuple[tuple[str, int], ...], str]:
        """Of which topics from a name on something is here, and up to which name that has been said."""
        topics = self._machine.topics
        is_in, strays = finder(taking_over.ranges), ring.strays
        names = sorted(
            name for name in topics if name >= start and is_in(point := point_of(name)) and point not in strays
        )
        told = names[: self._limits.have_max]
        until = told[-1] if len(names) > self._limits.have_max else ""
        return tuple((name, topics[name].next_offset) for name in told), until

    def _descriptor_of(self, group: bytes) -> GroupDescriptor | None:
        known = self._find_descriptor(group)
        if known is None and self._source is not None and self._source.group == group:
            return self._source
        return known

    def _persist(self, now_ms: int, command: Command, is_done: Callable[[], bool]) -> Persist:
        self._patience.wait(now_ms, is_done)
        self._ask_at_ms = now_ms
        return Persist(command)

    # What the source says.

    def on_piece(
        self, now_ms: int, ring: Ownership, piece: Piece, bodies: tuple[bytes | memoryview, ...]
    ) -> list[Effect]:
        """Writes down what has come, if it answers the last question."""
        taking_over = ring.taking_over
        if (
            taking_over is None
            or taking_over.source != piece.source.group
            or piece.number != self._number
            or len(bodies) not in (2, 3)
        ):
            return []
        if self._patience.is_waiting(now_ms):
            return []
        self._source, self._heard_at_ms = piece.source, now_ms
        self._number += 1  # The question has been answered.
        if piece.transfer and not taking_over.number:
            return self._bind(now_ms, ring, taking_over.source, piece.transfer, piece.ranges)
        if piece.transfer != taking_over.number:
            return []
        effects: list[Effect] = []
        ends = {each.topic: _end_of(each) for each in piece.topics}
        if piece.topics:
            effects.append(Persist(Load(piece.topics), (bodies[0],)))
        following = taking_over.mark
        if bodies[1]:
            facts = _decode_facts(bodies[1])
            if facts is None or (facts.source, facts.number) != (taking_over.source, taking_over.number):
                return []
            staged = bodies[2:] if staged_bytes(facts) else ()
            if sum(map(len, staged)) != staged_bytes(facts):
                return []
            effects.append(Persist(facts, staged))
            following = facts.end
        was_ready = self._is_ready
        if not taking_over.number:
            self._count(piece, len(bodies[0]))
        if effects:
            self._patience.wait(now_ms, lambda: self._has(ring, taking_over, ends, following))
        if effects or not was_ready:
            self._ask_at_ms = now_ms
        return effects

    def _has(self, ring: Ownership, before: TakingOver, ends: dict[str, int], mark: Mark) -> bool:
        """Whether a piece can be seen in the state, or does not matter any more."""
        now = ring.taking_over
        if now is None or (now.source, now.number) != (before.source, before.number):
            return True
        topics = self._machine.topics
        # A topic may have been collected since it was loaded, but then the facts that say so are there.
        loaded = all(name in topics and topics[name].next_offset >= end for name, end in ends.items())
        return now.mark >= mark and (loaded or mark > before.mark)

    def _count(self, piece: Piece, size_bytes: int) -> None:
        """Sees how much was new in this round over the topics."""
        self._start = piece.following
        self._round_bytes += size_bytes
        if not piece.following:
            self._rounds += 1
            is_nearly_done = self._round_bytes <= self._limits.piece_bytes_max
            self._is_ready = self._is_ready or is_nearly_done or self._rounds >= self._limits.rounds_max
            self._round_bytes = 0

    def on_nothing(self, now_ms: int, ring: Ownership, nothing: Nothing) -> list[Effect]:
        """Wants no more of what its source does not own, as long as it has not been given anything."""
        taking_over = ring.taking_over
        if taking_over is None or taking_over.number or taking_over.source != nothing.word.descriptor.group:
            return []
        if nothing.number != self._number or self._patience.is_waiting(now_ms):
            return []
        return [self._persist(now_ms, Seek(b"", ()), lambda: ring.taking_over != taking_over)]

    def on_clash(self, now_ms: int, ring: Ownership, clash: Clash) -> list[Effect]:
        """Wants no more of what it cannot have; what is in the way may be left out the next time."""
        taking_over = ring.taking_over
        if taking_over is None or taking_over.number or taking_over.source != clash.source:
            return []
        if clash.number != self._number or self._patience.is_waiting(now_ms):
            return []
        self.clashes += clash.topics
        return [self._persist(now_ms, Seek(b"", ()), lambda: ring.taking_over != taking_over)]

    def on_handed_off(
        self, now_ms: int, ring: Ownership, descriptor: GroupDescriptor, handed_off: HandedOff
    ) -> list[Effect]:
        """Takes what it was given, unless it has done so; whether it still wants it does not matter any more."""
        source = handed_off.source.group
        if ring.taken_over.get(source, 0) >= handed_off.number:
            return [ToGroup(handed_off.source, TakenOver(descriptor, source, handed_off.number))]
        taking_over = ring.taking_over
        if taking_over is not None and taking_over.source == source:
            self._source = handed_off.source
        if (taking_over is not None and taking_over.number) or self._patience.is_waiting(now_ms):
            return []
        self._source = handed_off.source
        return self._bind(now_ms, ring, source, handed_off.number, handed_off.ranges)

    def _bind(self, now_ms: int, ring: Ownership, source: bytes, number: int, ranges: KeyRanges) -> list[Effect]:
        """Writes down what exactly has been given, and from there on takes nothing else."""
        before = ring.taking_over
        return [self._persist(now_ms, Seek(source, ranges, number), lambda: ring.taking_over != before)]


def staged_bytes(facts: Facts) -> int:
    """How large the bodies of what is staged are together."""
    return sum(fact.size_bytes for fact in facts.facts if isinstance(fact, Staged))


def _end_of(loaded: LoadedTopic) -> int:
    last = loaded.batches[-1]
    return last.first_offset + last.count


def _decode_facts(frame: bytes | memoryview) -> Facts | None:
    try:
        return _facts_decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # The source has another version, and will be asked again.
