"""The engine joins wire, broker and journal, and does no I/O of its own.

    frames -> wire -> broker -> commands staged -> begin_commit -> (the journal writes) -> finish_commit
           -> broker applies -> answers and deliveries in `outgoing` -> frames

Whoever drives it brings the frames, runs `journal.write` on what `begin_commit` returned (beside the loop or
in it), calls `finish_commit`, and sends what is in `outgoing`. The ZeroMQ loop, the embedded bus and the
simulator are three such drivers. All requests that came while one commit was being written go into the next:
that is the group commit.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import starmap

import msgspec

from tidings.boot import boot_id
from tidings.errors import Overloaded, ProtocolError, TidingsError, Unavailable
from tidings.journal.blocks import BLOCK_BYTES
from tidings.journal.checked import DamagedPlace
from tidings.journal.disk import Buffer, Whereabouts
from tidings.journal.journal import Commit, Journal
from tidings.journal.record import COMMAND, Append
from tidings.journal.remedies import RESTORE, advising
from tidings.journal.scrub import Scrub
from tidings.message import Columns, Contents, select
from tidings.node.damages import Damages
from tidings.node.growth import Growth
from tidings.node.unpacked import Unpacked
from tidings.protocols.broker import messages, operators
from tidings.protocols.broker.broker import Broker
from tidings.protocols.broker.bulk import NEAR_BLOCK_BYTES, NEAR_BYTES_MAX, NearBody, NearFile, ReadDone
from tidings.protocols.broker.commands import Carried, CarriedStage, Carry, decode_command, encode_command
from tidings.protocols.broker.retention import Segment, carry_due, lowest_address
from tidings.protocols.broker.rights import check_right
from tidings.protocols.broker.topics import Place
from tidings.protocols.effects import Effect, Examine, Forward, Peer, Persist, PersistCopy, Send, Share, Stop
from tidings.protocols.events import Damaged, Examined, Persisted, Received, Refused, Ticked
from tidings.settings import BrokerSettings
from tidings.wire import codec
from tidings.wire.codec import Frame
from tidings.wire.contents import read_contents
from tidings.wire.replication import MARK, MATE_NAME

assert NEAR_BLOCK_BYTES == BLOCK_BYTES

MEMBERS_REQUESTS = (operators.AskMembers, operators.AddMember)

FULL_SENTENCE = (
    "tidings: the disk is full: puts are refused until there is room again, everything else goes on. Free some space."
)
RETENTION_EVERY_MS = 5_000
TICK_MS = 100
"""How often the engine looks at the time: a lost lease is noticed this late at most."""

_log = logging.getLogger("tidings.node")


class Engine:
    """One broker on one journal."""

    tick_ms = TICK_MS
    """How often `tick` is to be called."""

    def __init__(self, settings: BrokerSettings, journal: Journal, growth: Growth | None = None) -> None:
        self.broker = Broker(settings)
        self.growth = growth
        """What makes a group of it, for a broker that can become one."""
        self.journal = journal
        self.outgoing: list[tuple[Peer, list[Frame]]] = []
        """Frames to send, in order; the driver takes them out."""
        self.stopping = False
        self.staged_bytes = 0
        self._staged: list[Persist] = []
        self._committing: list[Persist] = []
        self._commit: Commit | None = None
        self._roll_due = False
        self._short_of_room = False
        self._retention_at_ms = 0
        self._now_ms = 0
        self._unpacked = Unpacked()
        self._postponed: list[Effect] = []
        """What could not be read because the storage server is away, and is tried again."""
        self.damages = Damages()
        self._scrub = Scrub(journal, journal.scrub_hours)

    def recover(self) -> int:
        """Rebuilds the state from the journal; the number of records that had to be replayed."""
        with advising(RESTORE):
            return self._recover()

    def _recover(self) -> int:
        recovery = self.journal.recover()
        machine = self.broker.machine
        if recovery.snapshot is not None:
            machine.restore(recovery.snapshot, recovery.indexes)
        count = 0
        for record in recovery.records:
            if record.kind == COMMAND:
                with contextlib.suppress(TidingsError):  # What the state refused the first time, it refuses again.
                    machine.apply(decode_command(record.command), record.time_ms, record.body_address)
            count += 1
        self.broker.recovered()
        return count

    # What comes in.

    def receive(self, now_ms: int, peer: Peer, frames: Sequence[Frame], user: str | None = None) -> None:
        """Takes one request: a header frame and its bodies."""
        self._now_ms = now_ms
        header = frames[0] if frames else b""
        if self.growth is not None:
            if header == MARK:
                if user in (None, MATE_NAME):  # With keys, only who has the key of the members speaks as one.
                    self.outgoing += self.growth.hear(frames)
                return
            self.growth.see(peer)
        try:
            request = codec.decode_request(header)
        except ProtocolError as error:
            self._refuse(peer, codec.guess_request(header), error)
            return
        bodies = tuple(frames[1:])
        batches: tuple[Contents, ...] = ()
        if bodies:
            try:
                batches = self._read_bodies(bodies)
            except TidingsError as error:
                self._refuse(peer, request.request, error)
                return
        self._take(Received(now_ms, peer, request, bodies, batches, user))

    def _take(self, received: Received) -> None:
        """A request that can be read."""
        if self.growth is not None and isinstance(received.message, MEMBERS_REQUESTS):
            self._take_growth(self.growth, received)
        else:
            self._run(self.broker.handle(received))

    def _take_growth(self, growth: Growth, received: Received) -> None:
        peer, message = received.peer, received.message
        try:
            check_right(self.broker.settings.admins, received.user, message)
            answer = growth.answer(peer, message, self.journal.next_slot)
        except TidingsError as error:
            self._refuse(peer, message.request, error)
            return
        if answer is not None:
            self.outgoing.append((peer, [codec.encode(answer)]))

    @property
    def outgrown(self) -> bool:
        """Whether another engine is to go on in place of this one: that of a group, or of a ring."""
        return self.growth is not None and self.growth.wanted

    def retire(self) -> None:
        """Another engine goes on in place of this one: all who wait for this one are told to ask that."""
        if self.growth is not None:
            self.outgoing += self.growth.redirects()

    def _read_bodies(self, bodies: tuple[Frame, ...]) -> tuple[Contents, ...]:
        settings = self.broker.settings
        if len(bodies) > settings.topics_per_request_max:
            raise ProtocolError(f"{len(bodies)} bodies came with one request: send fewer.")
        return tuple([read_contents(body, settings.message_bytes_max) for body in bodies])

    def _refuse(self, peer: Peer, request: int, error: TidingsError) -> None:
        self.outgoing.append((peer, [codec.encode(messages.Failed(request, error.number, str(error)))]))

    def gather(self, now_ms: int) -> bool:
        """Called before a commit begins, with all requests of a round; whether something should be sent before it."""
        return False

    def tick(self, now_ms: int) -> None:
        """To be called every `tick_ms`: leases, silent clients, and what retention lets go."""
        self._now_ms = now_ms
        self.scrub(now_ms)
        if self._postponed:
            postponed, self._postponed = self._postponed, []
            self._run(postponed)
        self._run(self.broker.handle(Ticked(now_ms)))
        if now_ms - self._retention_at_ms >= RETENTION_EVERY_MS:
            self._retention_at_ms = now_ms
            segments = self._segments()
            self._run(self.broker.retain(now_ms, segments))
            self._carry(segments)
        self._look_for_room()

    def _look_for_room(self) -> None:
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
                self._roll()

    def _roll(self) -> None:
        self._roll_due = True

    def scrub(self, now_ms: int) -> None:
        """Reads a little of what is stored, to see whether the disk still has it; nothing counts as checked then."""
        self.journal.forget_checks()
        for damage in self._scrub.tick(now_ms):
            self._note_damage(damage)

    def _note_damage(self, damage: DamagedPlace) -> None:
        """Something on the disk is not as it was written."""
        if self.damages.note(damage):
            self.broker.damaged = self.damages.places

    def _segments(self) -> list[Segment]:
        return [Segment(each.base_address, each.end_address, each.last_time_ms) for each in self.journal.segments]

    def _carry(self, segments: list[Segment]) -> None:
        """Copies what little the oldest segment still owes to the journal's end."""
        due = carry_due(self.broker.machine, segments)
        if due:
            # The storage server is away: next time. Or something is damaged, and stays where it is, with its segment.
            with contextlib.suppress(Unavailable, DamagedPlace):
                bodies = tuple(self._stored(place) for _, place in due)
                stored = tuple(carried for carried, _ in due if isinstance(carried, Carried))
                staged = tuple(carried for carried, _ in due if isinstance(carried, CarriedStage))
                self._stage_carry(Carry(stored, staged), bodies)

    def _stage_carry(self, command: Carry, bodies: tuple[Frame, ...]) -> None:
        self._stage(Persist(command, bodies))

    # The group commit.

    @property
    def has_staged(self) -> bool:
        return bool(self._staged) or self._roll_due

    @property
    def committing(self) -> bool:
        return self._commit is not None

    def begin_commit(self, now_ms: int) -> Commit:
        """What has been staged first, for `journal.write`; one commit at a time."""
        assert self.has_staged and self._commit is None
        journal = self.journal
        if journal.full or (self._roll_due and not journal.is_fresh):
            removable_address = lowest_address(self.broker.machine, journal.end_address)
            journal.roll_next(*self.broker.machine.seal(), removable_address)
        self._roll_due = False
        self._committing = self._take_staged()
        appends = [Append(COMMAND, encode_command(each.command), each.bodies, now_ms) for each in self._committing]
        self._commit = self.journal.begin(appends)
        return self._commit

    def _take_staged(self) -> list[Persist]:
        staged, bytes_max = self._staged, self.journal.commit_bytes_max
        if self.staged_bytes <= bytes_max:
            self._staged, self.staged_bytes = [], 0
            return staged
        count = size = 0
        while count < len(staged) and size < bytes_max:
            size += staged_bytes_of(staged[count])
            count += 1
        self._staged, self.staged_bytes = staged[count:], self.staged_bytes - size
        return staged[:count]

    def finish_commit(self, now_ms: int) -> None:
        """The commit is durable: apply it, answer, and serve the streams."""
        self._now_ms = now_ms
        assert self._commit is not None
        commit, committed = self._commit, self._committing
        self.journal.finish(commit)
        self._end_commit(commit)
        handle = self.broker.handle
        for persist, record in zip(committed, commit.records, strict=True):
            self._run(handle(Persisted(now_ms, persist.command, record.time_ms, record.body_address, persist.origin)))
        self._run(self.broker.serve_streams(now_ms))

    def _end_commit(self, commit: Commit) -> None:
        if commit.sealed:
            self.broker.machine.mark_sealed()
        if self.journal.short_of_room != self._short_of_room:
            self._look_for_room()
        self._commit, self._committing = None, []

    def refuse_commit(self, now_ms: int, error: Exception) -> None:
        """The disk had no room: nothing of the commit was stored, and whoever put something is told.

        What has no bodies is small and may free room, so it is tried again by itself, in the room that is kept for it.
        """
        assert self._commit is not None
        commit, refused = self._commit, self._committing
        self.journal.undo(commit)
        self._end_commit(commit)
        small = [each for each in refused if not each.bodies]
        if len(small) < len(refused):
            self._staged[:0] = small
            self.staged_bytes += sum(map(staged_bytes_of, small))
            refused = [each for each in refused if each.bodies]
        told = Overloaded(f"The broker's disk is full ({error}): free some space, then try again.")
        for persist in refused:
            self._refuse_full(persist, now_ms, told)

    def _refuse_full(self, persist: Persist, now_ms: int, told: Overloaded) -> None:
        if persist.origin is not None:
            self._run(self.broker.handle(Refused(now_ms, persist.command, persist.origin, told)))

    def conclude(self, now_ms: int) -> None:
        """The process is about to end in good order: stages what is still to be written down."""

    # What goes out.

    def _stage(self, effect: Persist) -> None:
        if not self._refuses(effect):
            self._staged.append(effect)
            self.staged_bytes += staged_bytes_of(effect)

    def _refuses(self, effect: Persist) -> bool:
        """Whether there is room only for what frees some, and this is more; whoever asked for it is told."""
        if not self._short_of_room or not effect.bodies:
            return False
        told = Overloaded("The broker's disk is full: free some space, then try again.")
        self._refuse_full(effect, self._now_ms, told)
        return True

    def _run(self, effects: list[Effect]) -> None:
        """Does what is wanted, in order. What an examined batch leads to comes before what stood behind it, in the same
        row and not in a call of its own, since one may lead to the next for as many batches as a topic has."""
        bodies: dict[Place, Frame] = {}
        row: Iterator[Effect] | None = iter(self._plan(effects)) if effects else None
        while row is not None:
            row = self._run_row(row, bodies)

    def _run_row(self, row: Iterator[Effect], bodies: dict[Place, Frame]) -> Iterator[Effect] | None:
        """Does what is wanted as far as the first batch that is examined; all that is left to do then."""
        for effect in row:
            try:
                match effect:
                    case Persist():
                        self._stage(effect)
                    case Send():
                        self.outgoing.append((effect.peer, [codec.encode(effect.message)]))
                    case Forward(peer, message, places, boot):
                        if boot and boot == boot_id():
                            assert isinstance(message, ReadDone)
                            message, places = self._pointed(message, places)
                        frames: list[Frame] = [codec.encode(message)]
                        for place in places:
                            body = bodies.get(place)
                            if body is None:
                                body = bodies[place] = self._read(place)
                            frames.append(body)
                        self.outgoing.append((peer, frames))
                    case Share(peer, message, picks):
                        self.outgoing.append((peer, [codec.encode(message), *starmap(self._pick, picks)]))
                    case Examine(places, origin):
                        batches = tuple(self._columns(place) for place in places)
                        wanted = self._plan(self.broker.handle(Examined(self._now_ms, batches, origin)))
                        return iter([*wanted, *row])
                    case PersistCopy(place, make, origin):
                        copied = bytes(self._read(place))
                        self._stage(Persist(make(len(copied)), (copied,), origin))
                    case Stop():
                        self.stopping = True
                    case _:
                        self._run_other(effect)
            except Unavailable:  # The storage server is away.
                if isinstance(effect, Examine | PersistCopy):
                    self._postponed.append(effect)
                # Any other is a message that gets lost on its way: whoever waits for it asks again.
            except DamagedPlace as damage:
                self._on_damage(effect, damage)
        return None

    def _on_damage(self, effect: Effect, damage: DamagedPlace) -> None:
        """Something that an effect wants to read is damaged: it is withheld, and all else goes on."""
        self._withhold(effect, damage, f"{damage.name} is damaged at position {damage.position}")

    def _withhold(self, effect: Effect, damage: DamagedPlace, reason: str | None) -> None:
        wanted = enumerate(places_of(effect))
        readable = next((number for number, place in wanted if _is_within(place, damage)), None)
        if readable is not None:
            self._run(self.broker.handle(Damaged(self._now_ms, effect, readable, reason)))

    def _plan(self, effects: list[Effect]) -> list[Effect]:
        """What is done for effects that the broker wants."""
        return effects

    def _pointed(self, done: ReadDone, places: tuple[Place, ...]) -> tuple[ReadDone, tuple[Place, ...]]:
        """An answer that says where its bodies lie, for a reader that has the same files; and which have to be sent."""
        files: dict[Whereabouts, int] = {}
        near: list[NearBody | None] = []
        sent: list[Place] = []
        for place in places:
            is_pointed = place.kept is None and place.size_bytes <= NEAR_BYTES_MAX
            found = self.journal.whereabouts(place.address, place.size_bytes) if is_pointed else None
            if found is None:
                near.append(None)
                sent.append(place)
            else:
                file, position, sums = found
                near.append(NearBody(files.setdefault(file, len(files)), position, place.size_bytes, sums))
        pointed = msgspec.structs.replace(done, files=tuple(NearFile(*file) for file in files), near=tuple(near))
        return pointed, tuple(sent)

    def _run_other(self, effect: Effect) -> None:
        """An effect that only some engines know."""
        raise AssertionError(f"Nobody knows what to do for {effect}.")

    def _columns(self, place: Place) -> Columns:
        """A stored batch, unpacked."""
        address, size_bytes = place.address, place.size_bytes
        return self._unpacked.get(address, size_bytes, lambda: codec.decode_columns(self._stored(place)))

    def _pick(self, place: Place, rows: tuple[int, ...]) -> Frame:
        columns = self._columns(place)
        if len(rows) == len(columns.values):
            return self._stored(place)
        return codec.encode(select(columns, rows))

    def _read(self, place: Place) -> Frame:
        body = self._stored(place)
        return body if place.kept is None else codec.thin(body, place.kept)

    def _stored(self, place: Place) -> Buffer:
        """A stored body as it was written, or DamagedPlace."""
        try:
            return self.journal.read(place.address, place.size_bytes)
        except DamagedPlace as damage:
            self._note_damage(damage)
            raise


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
