"""The taking end of a hand-over, at the leader of the group that is to own something.

What it takes, from whom, and how much of it is there stands in the journal: it asks for the next piece by what is
applied, writes what it gets into the journal, and waits until it sees it there. While the giver goes on working, it
goes through the topics again and again, until one time so little was new that the giver may stop: it says so
(`Ready`), and takes the rest. With the last fact there, one command makes the arcs its own.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tidings.protocols.broker.commands import Command
from tidings.protocols.broker.machine import Machine
from tidings.protocols.effects import Effect, Persist
from tidings.protocols.ring.arcs import Arcs, finder, point_of, without
from tidings.protocols.ring.commands import Facts, Load, LoadedTopic, Seek, Take
from tidings.protocols.ring.facts import END, TOPICS, Mark
from tidings.protocols.ring.giving import FindCard
from tidings.protocols.ring.handover_messages import Clash, Given, Nothing, Piece, Pull, Ready, Taken, ToGroup
from tidings.protocols.ring.limits import Limits
from tidings.protocols.ring.messages import Card
from tidings.protocols.ring.ownership import Ownership, Taking
from tidings.protocols.ring.patience import Patience
from tidings.protocols.ring.policy import ring_of

_facts_decoder = msgspec.msgpack.Decoder(Facts)


class Taker:
    """Asks for what is taken, and writes it down."""

    def __init__(self, machine: Machine, find_card: FindCard, limits: Limits) -> None:
        self._machine = machine
        self._limits = limits
        self._find_card = find_card
        self._patience = Patience()
        self._wished: tuple[Arcs, Card] | None = None
        self._giver: Card | None = None
        self._sought: Taking | None = None
        """What was being taken when this was last looked at."""
        self._ask_at_ms = 0
        self._heard_at_ms = 0
        self._number = 0
        self._start = ""
        self._round_bytes = 0
        self._rounds = 0
        self._is_ready = False
        self.clashes: list[str] = []
        """Topics of givers that were in the way of what is brought; the host takes them out."""

    @property
    def has_wish(self) -> bool:
        return self._wished is not None

    @property
    def is_seeking(self) -> bool:
        """Whether a command is on its way, as far as is known."""
        return self._patience.is_set

    def wish(self, arcs: Arcs, giver: Card) -> None:
        """These arcs are wanted of that group, unless others are already."""
        ring = ring_of(self._machine)
        if self._wished is None and (ring is None or ring.taking is None):
            self._wished = (arcs, giver)

    def tick(self, now_ms: int, ring: Ownership, card: Card) -> list[Effect]:
        """Goes on with what is taken, if it is time."""
        if self._patience.is_waiting(now_ms):
            return []
        effects = self._look(now_ms, ring, card)
        taking = ring.taking
        if taking is None:
            return effects + self._begin(now_ms, ring)
        if taking.mark == END:
            return [*effects, self._persist(now_ms, Take(taking.giver, taking.number), lambda: ring.taking != taking)]
        if not taking.number and now_ms - self._heard_at_ms >= self._limits.give_up_ms:
            return [*effects, self._persist(now_ms, Seek(b"", ()), lambda: ring.taking != taking)]
        if now_ms < self._ask_at_ms:
            return effects
        self._ask_at_ms = now_ms + self._limits.ask_again_ms
        return effects + self._ask(now_ms, ring, taking, card)

    def _look(self, now_ms: int, ring: Ownership, card: Card) -> list[Effect]:
        """Sees what has become of what was taken, and begins anew with anything else."""
        before, self._sought = self._sought, ring.taking
        taken: list[Effect] = []
        if before is not None and ring.taken.get(before.giver) == before.number != 0:
            giver = self._card_of(before.giver)
            taken = [ToGroup(giver, Taken(card, before.giver, before.number))] if giver is not None else []
        now = ring.taking
        if now is not None and (before is None or (before.giver, before.number) != (now.giver, now.number)):
            self._ask_at_ms = self._heard_at_ms = now_ms
            self._start, self._round_bytes, self._rounds, self._is_ready = "", 0, 0, False
        return taken

    def _begin(self, now_ms: int, ring: Ownership) -> list[Effect]:
        if self._wished is None:
            return []
        (wished, giver), self._wished = self._wished, None
        arcs = without(wished, (*ring.arcs, *(ring.giving.arcs if ring.giving else ())))
        if not arcs:
            return []
        self._giver = giver
        return [self._persist(now_ms, Seek(giver.group, arcs), lambda: ring.taking is not None)]

    def _ask(self, now_ms: int, ring: Ownership, taking: Taking, card: Card) -> list[Effect]:
        giver = self._card_of(taking.giver)
        if giver is None:
            return []
        self._number = max(self._number + 1, now_ms)
        start = self._start
        if taking.number:
            start = taking.mark.name if taking.mark.kind == TOPICS else ""
        have, until = self._have(ring, taking, start) if taking.mark.kind == TOPICS else ((), "")
        vacant = ring.strays_in(taking.arcs) if ring.strays and not taking.number else ()
        pull = Pull(card, taking.giver, taking.arcs, self._number, start, taking.mark, have, until, vacant)
        effects: list[Effect] = [ToGroup(giver, pull)]
        if self._is_ready and not taking.number:
            effects.insert(0, ToGroup(giver, Ready(card, taking.giver, taking.arcs, vacant)))
        return effects

    def _have(self, ring: Ownership, taking: Taking, start: str) -> tuple[tuple[tuple[str, int], ...], str]:
        """Of which topics from a name on something is here, and up to which name that has been said."""
        topics = self._machine.topics
        is_in, strays = finder(taking.arcs), ring.strays
        names = sorted(
            name for name in topics if name >= start and is_in(point := point_of(name)) and point not in strays
        )
        told = names[: self._limits.have_max]
        until = told[-1] if len(names) > self._limits.have_max else ""
        return tuple((name, topics[name].next_offset) for name in told), until

    def _card_of(self, group: bytes) -> Card | None:
        known = self._find_card(group)
        if known is None and self._giver is not None and self._giver.group == group:
            return self._giver
        return known

    def _persist(self, now_ms: int, command: Command, is_done: Callable[[], bool]) -> Persist:
        self._patience.wait(now_ms, is_done)
        self._ask_at_ms = now_ms
        return Persist(command)

    # What the giver says.

    def on_piece(
        self, now_ms: int, ring: Ownership, piece: Piece, bodies: tuple[bytes | memoryview, ...]
    ) -> list[Effect]:
        """Writes down what has come, if it answers the last question."""
        taking = ring.taking
        if taking is None or taking.giver != piece.giver.group or piece.number != self._number or len(bodies) != 2:
            return []
        if self._patience.is_waiting(now_ms):
            return []
        self._giver, self._heard_at_ms = piece.giver, now_ms
        self._number += 1  # The question has been answered.
        if piece.gift and not taking.number:
            return self._bind(now_ms, ring, taking.giver, piece.gift, piece.arcs)
        if piece.gift != taking.number:
            return []
        effects: list[Effect] = []
        ends = {each.topic: _end_of(each) for each in piece.topics}
        if piece.topics:
            effects.append(Persist(Load(piece.topics), (bodies[0],)))
        following = taking.mark
        if bodies[1]:
            facts = _decode_facts(bodies[1])
            if facts is None or (facts.giver, facts.number) != (taking.giver, taking.number):
                return []
            effects.append(Persist(facts))
            following = facts.end
        was_ready = self._is_ready
        if not taking.number:
            self._count(piece, len(bodies[0]))
        if effects:
            self._patience.wait(now_ms, lambda: self._has(ring, taking, ends, following))
        if effects or not was_ready:
            self._ask_at_ms = now_ms
        return effects

    def _has(self, ring: Ownership, before: Taking, ends: dict[str, int], mark: Mark) -> bool:
        """Whether a piece can be seen in the state, or does not matter any more."""
        now = ring.taking
        if now is None or (now.giver, now.number) != (before.giver, before.number):
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
            is_near = self._round_bytes <= self._limits.piece_bytes_max
            self._is_ready = self._is_ready or is_near or self._rounds >= self._limits.rounds_max
            self._round_bytes = 0

    def on_nothing(self, now_ms: int, ring: Ownership, nothing: Nothing) -> list[Effect]:
        """Wants no more of what its giver does not own, as long as it has not been given anything."""
        taking = ring.taking
        if taking is None or taking.number or taking.giver != nothing.word.card.group:
            return []
        if nothing.number != self._number or self._patience.is_waiting(now_ms):
            return []
        return [self._persist(now_ms, Seek(b"", ()), lambda: ring.taking != taking)]

    def on_clash(self, now_ms: int, ring: Ownership, clash: Clash) -> list[Effect]:
        """Wants no more of what it cannot have; what is in the way may be left out the next time."""
        taking = ring.taking
        if taking is None or taking.number or taking.giver != clash.giver:
            return []
        if clash.number != self._number or self._patience.is_waiting(now_ms):
            return []
        self.clashes += clash.topics
        return [self._persist(now_ms, Seek(b"", ()), lambda: ring.taking != taking)]

    def on_given(self, now_ms: int, ring: Ownership, card: Card, given: Given) -> list[Effect]:
        """Takes what it was given, unless it has done so; whether it still wants it does not matter any more."""
        giver = given.giver.group
        if ring.taken.get(giver, 0) >= given.number:
            return [ToGroup(given.giver, Taken(card, giver, given.number))]
        taking = ring.taking
        if taking is not None and taking.giver == giver:
            self._giver = given.giver
        if (taking is not None and taking.number) or self._patience.is_waiting(now_ms):
            return []
        self._giver = given.giver
        return self._bind(now_ms, ring, giver, given.number, given.arcs)

    def _bind(self, now_ms: int, ring: Ownership, giver: bytes, number: int, arcs: Arcs) -> list[Effect]:
        """Writes down what exactly has been given, and from there on takes nothing else."""
        before = ring.taking
        return [self._persist(now_ms, Seek(giver, arcs, number), lambda: ring.taking != before)]


def _end_of(loaded: LoadedTopic) -> int:
    last = loaded.batches[-1]
    return last.first_offset + last.count


def _decode_facts(frame: bytes | memoryview) -> Facts | None:
    try:
        return _facts_decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # The giver has another version, and will be asked again.
