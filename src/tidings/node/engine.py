"""The engine joins wire, broker and log, and does no I/O of its own.

    frames -> wire -> broker -> commands for the log -> begin_commit -> (the journal writes) -> finish_commit
           -> broker applies -> answers and deliveries in `outgoing` -> frames

It is the same engine alone, in a group and in a ring, made of parts that are handed in: a log, which decides what is
durable and in which order (`node.alone`: one disk does; `node.group`: several members agree), and what a node of a ring
adds, if it is one (`node.ring`). The parts see the engine as their host.

Anyone who drives it brings the frames, runs `journal.write` on what `begin_commit` returned (beside the loop or
in it), calls `finish_commit`, and sends what is in `outgoing`. The ZeroMQ loop, the embedded bus and the
simulator are three such drivers. All requests that came while one commit was being written go into the next:
that is the group commit.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import starmap
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from tidings.boot import boot_id
from tidings.errors import Overloaded, ProtocolError, TidingsError, Unavailable
from tidings.journal.checked import DamagedPlace
from tidings.journal.journal import Commit, Journal, SegmentRemoved
from tidings.journal.scrub import Scrub
from tidings.message import Contents
from tidings.node.damages import Damages
from tidings.node.stored import StoredBatches
from tidings.protocols.broker import messages
from tidings.protocols.broker.broker import Broker
from tidings.protocols.broker.bulk import ReadDone
from tidings.protocols.broker.commands import Carried, CarriedStage, Carry
from tidings.protocols.broker.retention import Segment, carry_due, lowest_address
from tidings.protocols.broker.topics import Place
from tidings.protocols.effects import Effect, Examine, Forward, Peer, Persist, PersistCopy, Send, Share, Stop
from tidings.protocols.events import Damaged, Examined, Moved, Received, Refused, Ticked
from tidings.settings import BrokerSettings
from tidings.wire import codec
from tidings.wire.codec import Frame
from tidings.wire.contents import read_contents

FULL_SENTENCE = (
    "tidings: the disk is full: puts are refused until there is room again, everything else goes on. Free some space."
)
RETENTION_EVERY_MS = 5_000
TICK_MS = 100
"""How often the engine looks at the time: a lost lease is noticed this late at most."""

_log = logging.getLogger("tidings.node")


class Log(Protocol):
    """What decides which commands are durable, and in which order; and who is served meanwhile."""

    tick_ms: int
    """How often `tick` is to be called."""
    staged_bytes: int
    """About how many bytes wait to become durable."""

    @property
    def has_staged(self) -> bool: ...

    @property
    def committing(self) -> bool: ...

    @property
    def outgrown(self) -> bool:
        """Whether another engine is to go on in place of this one: that of a group, or of a ring."""

    def recover(self, now_ms: int) -> int:
        """Rebuilds the state; the number of records that had to be replayed."""

    def hear(self, now_ms: int, peer: Peer, frames: Sequence[Frame], user: str | None) -> bool:
        """Takes what other nodes say; False if it is something else."""

    def take(self, received: Received) -> None:
        """A request that can be read."""

    def stage(self, effect: Persist) -> None:
        """A command is to become durable, and then to be applied."""

    def stage_carry(self, command: Carry, bodies: tuple[Frame, ...]) -> None:
        """The same for a copy of what is stored already, which is this node's own affair."""

    def roll(self) -> None:
        """Has the current segment sealed with the next commit."""

    def gather(self, now_ms: int) -> bool:
        """Called before a commit begins, with all requests of a round; whether something should be sent before it."""

    def begin_commit(self, now_ms: int) -> Commit:
        """What has been staged, for `journal.write`; one commit at a time."""

    def finish_commit(self, now_ms: int) -> None:
        """The commit is durable."""

    def refuse_commit(self, now_ms: int, error: Exception) -> None:
        """The disk had no room: nothing of the commit was stored."""

    def tick(self, now_ms: int) -> None:
        """To be called every `tick_ms`."""

    def on_damage(self, effect: Effect, damage: DamagedPlace) -> None:
        """Something that an effect wants to read is damaged."""

    def on_damage_noted(self, damage: DamagedPlace) -> None:
        """Something on the disk is not as it was written."""

    def conclude(self, now_ms: int) -> None:
        """The process is about to end in good order: stages what is still to be written down."""

    def retire(self) -> None:
        """Another engine goes on in place of this one: all who wait for this one are told to ask that."""


class Extension(Protocol):
    """What a node of a ring adds: it hears first, and answers clients at other nodes."""

    def hear(self, now_ms: int, peer: Peer, frames: Sequence[Frame], user: str | None) -> bool:
        """Takes what clients and other nodes say; False if it is for this node's group."""

    def answer(self, peer: Peer, frames: list[Frame]) -> bool:
        """Sends an answer to a client at another node's door; False if it is not for one."""

    def plan(self, effects: list[Effect]) -> list[Effect]:
        """What is done for effects that the broker wants."""

    def perform(self, effect: Effect) -> None:
        """Does what only nodes of a ring know."""

    def tick(self, now_ms: int) -> None:
        """To be called after the log's."""


LogT = TypeVar("LogT", bound=Log)
RingT = TypeVar("RingT", bound=Extension | None)


class Engine(Generic[LogT, RingT]):
    """One broker on one log."""

    log: LogT
    ring: RingT

    def __init__(
        self,
        settings: BrokerSettings,
        journal: Journal,
        make_log: Callable[[AnyEngine], LogT],
        make_ring: Callable[[AnyEngine], RingT],
    ) -> None:
        self.settings = settings
        self.journal = journal
        self.now_ms = 0
        self.outgoing: list[tuple[Peer, list[Frame]]] = []
        """Frames to send, in order; the driver takes them out."""
        self.stopping = False
        self.damages = Damages()
        self.batches = StoredBatches(journal, self.note_damage)
        self.broker = Broker(settings)
        self._scrub = Scrub(journal, journal.scrub_hours)
        self._short_of_room = False
        self._retention_at_ms = 0
        self._postponed: list[Effect] = []
        """What could not be read because the storage server is away, and is tried again."""
        self.log = make_log(self)
        self.ring = make_ring(self)

    # What drives it.

    @property
    def tick_ms(self) -> int:
        return self.log.tick_ms

    @property
    def staged_bytes(self) -> int:
        return self.log.staged_bytes

    @property
    def has_staged(self) -> bool:
        return self.log.has_staged

    @property
    def committing(self) -> bool:
        return self.log.committing

    @property
    def outgrown(self) -> bool:
        return self.log.outgrown

    def recover(self, now_ms: int = 0) -> int:
        return self.log.recover(now_ms)

    def receive(self, now_ms: int, peer: Peer, frames: Sequence[Frame], user: str | None = None) -> None:
        """Takes what has come: from a client, or from another node."""
        self.now_ms = now_ms
        if self.ring is None or not self.ring.hear(now_ms, peer, frames, user):
            self.receive_here(now_ms, peer, frames, user)

    def receive_here(self, now_ms: int, peer: Peer, frames: Sequence[Frame], user: str | None) -> None:
        """The same, for this node or its group."""
        if self.log.hear(now_ms, peer, frames, user):
            return
        header = frames[0] if frames else b""
        try:
            request = codec.decode_request(header)
        except ProtocolError as error:
            self.refuse(peer, codec.guess_request(header), error)
            return
        bodies = tuple(frames[1:])
        batches: tuple[Contents, ...] = ()
        if bodies:
            try:
                batches = self.read_bodies(bodies)
            except TidingsError as error:
                self.refuse(peer, request.request, error)
                return
        self.log.take(Received(now_ms, peer, request, bodies, batches, user))

    def read_bodies(self, bodies: tuple[Frame, ...]) -> tuple[Contents, ...]:
        """What the bodies of a request hold, or why they cannot be taken."""
        settings = self.settings
        if len(bodies) > settings.topics_per_request_max:
            raise ProtocolError(f"{len(bodies)} bodies came with one request: send fewer.")
        return tuple([read_contents(body, settings.message_bytes_max) for body in bodies])

    def gather(self, now_ms: int) -> bool:
        return self.log.gather(now_ms)

    def begin_commit(self, now_ms: int) -> Commit:
        return self.log.begin_commit(now_ms)

    def finish_commit(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.log.finish_commit(now_ms)

    def refuse_commit(self, now_ms: int, error: Exception) -> None:
        self.now_ms = now_ms
        self.log.refuse_commit(now_ms, error)

    def tick(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.log.tick(now_ms)
        if self.ring is not None:
            self.ring.tick(now_ms)

    def conclude(self, now_ms: int) -> None:
        self.log.conclude(now_ms)

    def retire(self) -> None:
        self.log.retire()

    # What the log needs of it.

    def keep_house(self, now_ms: int, serves: bool) -> None:
        """Leases, silent clients, what retention lets go; and the disk, also while others serve."""
        self.scrub(now_ms)
        if serves:
            postponed, self._postponed = self._postponed, []
            if postponed:
                self.run(postponed)
            self.run(self.broker.handle(Ticked(now_ms)))
        if now_ms - self._retention_at_ms >= RETENTION_EVERY_MS:
            self._retention_at_ms = now_ms
            segments = self._segments()
            if serves:
                self.run(self.broker.retain(now_ms, segments))
            self._carry(segments)
        self.look_for_room()

    def forget_postponed(self) -> None:
        """Nobody waits any more for what could not be read."""
        self._postponed.clear()

    def notice_room(self) -> None:
        """A commit has come to its end: whether there is room has perhaps changed."""
        if self.journal.short_of_room != self._short_of_room:
            self.look_for_room()

    def look_for_room(self) -> None:
        """On a full disk: says so, once; and seals the segment, if that lets older ones go."""
        journal = self.journal
        journal.restock()
        if journal.short_of_room != self._short_of_room:
            self._short_of_room = journal.short_of_room
            _log.warning(FULL_SENTENCE if self._short_of_room else "tidings: there is room on the disk again.")
        if self._short_of_room and not journal.is_fresh:
            segments, end_address = journal.segments, journal.end_address
            oldest_end = segments[0].end_address if segments else 0
            if lowest_address(self.broker.machine, end_address) >= oldest_end:
                self.log.roll()

    def scrub(self, now_ms: int) -> None:
        """Reads a little of what is stored, to see whether the disk still has it; nothing counts as checked then."""
        self.journal.forget_checks()
        for damage in self._scrub.tick(now_ms):
            self.note_damage(damage)

    def note_damage(self, damage: DamagedPlace) -> None:
        """Something on the disk is not as it was written."""
        if self.damages.note(damage):
            self.broker.damaged = self.damages.places
        self.log.on_damage_noted(damage)

    def _segments(self) -> list[Segment]:
        return [Segment(each.base_address, each.end_address, each.last_time_ms) for each in self.journal.segments]

    def _carry(self, segments: list[Segment]) -> None:
        """Copies what little the oldest segment still owes to the journal's end."""
        due = carry_due(self.broker.machine, segments)
        if due:
            # The storage server is away: next time. Or something is damaged, and stays where it is, with its segment.
            with contextlib.suppress(Unavailable, DamagedPlace):
                bodies = tuple(self.batches.stored(place) for _, place in due)
                stored = tuple(carried for carried, _ in due if isinstance(carried, Carried))
                staged = tuple(carried for carried, _ in due if isinstance(carried, CarriedStage))
                self.log.stage_carry(Carry(stored, staged), bodies)

    def refuses(self, effect: Persist) -> bool:
        """Whether there is room only for what frees some, and this is more; the one who asked for it is told."""
        if not self._short_of_room or not effect.bodies:
            return False
        told = Overloaded("The broker's disk is full: free some space, then try again.")
        self.refuse_full(effect, told)
        return True

    def refuse_full(self, persist: Persist, told: Overloaded) -> None:
        """There is no room for it: the one who asked for it is told."""
        if persist.origin is not None:
            self.run(self.broker.handle(Refused(self.now_ms, persist.command, persist.origin, told)))

    # What goes out.

    def send(self, peer: Peer, frames: list[Frame]) -> None:
        """Frames for a client or another node."""
        if self.ring is None or not self.ring.answer(peer, frames):
            self.outgoing.append((peer, frames))

    def reply(self, peer: Peer, answer: Any) -> None:
        self.send(peer, [codec.encode(answer)])

    def refuse(self, peer: Peer, request: int, error: TidingsError) -> None:
        """Says what is wrong with a request."""
        self.reply(peer, messages.Failed(request, error.number, str(error)))

    def run(self, effects: list[Effect]) -> None:
        """Does what is wanted, in order. What an examined batch leads to comes before what stood behind it, in the same
        row and not in a call of its own, since one may lead to the next for as many batches as a topic has."""
        bodies: dict[Place, Frame] = {}
        row: Iterator[Effect] | None = iter(self._plan(effects)) if effects else None
        while row is not None:
            row = self._run_row(row, bodies)

    def _plan(self, effects: list[Effect]) -> list[Effect]:
        return effects if self.ring is None else self.ring.plan(effects)

    def _run_row(self, row: Iterator[Effect], bodies: dict[Place, Frame]) -> Iterator[Effect] | None:
        """Does what is wanted as far as the first batch that is examined; all that is left to do then."""
        for effect in row:
            try:
                match effect:
                    case Persist():
                        self.log.stage(effect)
                    case Send():
                        self.send(effect.peer, [codec.encode(effect.message)])
                    case Forward(peer, message, places, boot):
                        if boot and boot == boot_id():
                            assert isinstance(message, ReadDone)
                            message, places = self.batches.pointed(message, places)
                        frames: list[Frame] = [codec.encode(message)]
                        for place in places:
                            body = bodies.get(place)
                            if body is None:
                                body = bodies[place] = self.batches.body(place)
                            frames.append(body)
                        self.send(peer, frames)
                    case Share(peer, message, picks):
                        self.send(peer, [codec.encode(message), *starmap(self.batches.pick, picks)])
                    case Examine(places, origin):
                        batches = tuple(self.batches.columns(place) for place in places)
                        wanted = self._plan(self.broker.handle(Examined(self.now_ms, batches, origin)))
                        return iter([*wanted, *row])
                    case PersistCopy(place, make, origin):
                        copied = bytes(self.batches.body(place))
                        self.log.stage(Persist(make(len(copied)), (copied,), origin))
                    case Stop():
                        self.stopping = True
                    case _:
                        assert self.ring is not None, f"Nobody knows what to do for {effect}."
                        self.ring.perform(effect)
            except Unavailable:  # The storage server is away.
                if isinstance(effect, Examine | PersistCopy):
                    self._postponed.append(effect)
                # Any other is a message that gets lost on its way: anyone who waits for it asks again.
            except DamagedPlace as damage:
                self.log.on_damage(effect, damage)
            except SegmentRemoved as removed:
                self._do_again(effect, removed)
        return None

    def _do_again(self, effect: Effect, removed: SegmentRemoved) -> None:
        """Retention let go of what an effect wants to read, or copied it forward, while the effect waited for a
        confirmation or for a repair. A message is not sent then: anyone who waits for it asks again."""
        if lowest_address(self.broker.machine, self.journal.end_address) <= removed.address:
            raise removed  # The state still refers to it: it should not have been let go.
        self.run(self.broker.handle(Moved(self.now_ms, effect)))

    def withhold(self, effect: Effect, damage: DamagedPlace, reason: str | None) -> None:
        """What an effect wants to read is damaged: it stays here, and all else goes on."""
        wanted = enumerate(places_of(effect))
        readable = next((number for number, place in wanted if _is_within(place, damage)), None)
        if readable is not None:
            self.run(self.broker.handle(Damaged(self.now_ms, effect, readable, reason)))


AnyEngine = Engine[Any, Any]


def say_damaged(damage: DamagedPlace) -> str:
    """What readers are told of a damaged place."""
    return f"{damage.name} is damaged at position {damage.position}"


def places_of(effect: Effect) -> tuple[Place, ...]:
    """What an effect reads, in its order."""
    match effect:
        case Forward(_, _, places) | Examine(places):
            return places
        case Share(_, _, picks):
            return tuple(place for place, _ in picks)
        case PersistCopy(place):
            return (place,)
    return ()


def with_places(effect: Effect, change: Callable[[Place], Place]) -> Effect:
    """The same effect, reading elsewhere."""
    replace = msgspec.structs.replace
    match effect:
        case Forward(_, _, places) | Examine(places):
            return replace(effect, places=tuple(map(change, places)))
        case Share(_, _, picks):
            return replace(effect, picks=tuple((change(place), rows) for place, rows in picks))
        case PersistCopy(place):
            return replace(effect, place=change(place))
    return effect


def _is_within(place: Place, damage: DamagedPlace) -> bool:
    return place.address < damage.span.end and damage.span.start < place.address + place.size_bytes


def staged_bytes_of(effect: Persist) -> int:
    """About how many bytes it will be in the journal."""
    size = 256
    for body in effect.bodies:
        size += len(body)
    return size
