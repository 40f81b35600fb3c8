"""Two groups in memory that hand ranges to each other while clients work, and a broker that never moved anything.

Each group is a state machine on a simulated journal; its leader's `Handoff` may be replaced at any time, and the state
may be rebuilt from a snapshot, its indexes and the records behind it. Messages get lost, repeated and reordered, and
commands are applied late or never. What a group accepts is also done to the reference, and the answers must agree.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import msgspec

from tidings.errors import Moved, TidingsError
from tidings.protocols.broker.commands import (
    Adopt,
    Attach,
    BatchWrite,
    Carried,
    Carry,
    Close,
    Collect,
    Command,
    Detach,
    GroupAck,
    Join,
    Leave,
    Open,
    Subscribe,
    Trim,
    Unsubscribe,
    Write,
    encode_command,
)
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.messages import Acknowledgement, Position, Target
from tidings.protocols.broker.topics import Place
from tidings.protocols.effects import Effect, Persist
from tidings.protocols.ring.commands import Claim, decode_command
from tidings.protocols.ring.handoff import Handoff, ToGroup
from tidings.protocols.ring.key_ranges import (
    WHOLE,
    KeyRange,
    KeyRanges,
    common,
    home_of,
    joined,
    owns,
    point_of,
    without,
)
from tidings.protocols.ring.limits import Limits
from tidings.protocols.ring.messages import GroupDescriptor
from tidings.protocols.ring.ownership import Ownership
from tidings.protocols.ring.policy import RingPolicy, ring_of
from tidings.settings import BrokerSettings
from tidings.wire.ring import decode_header, encode_message

SETTINGS = BrokerSettings(ids_age_ms=60_000, drop_acknowledged=True)
LIMITS = Limits(piece_bytes_max=1_500, facts_bytes_max=600, records_max=2, have_max=3, rounds_max=4)
TOPICS = ("news", "sport", "{shop}orders", "{shop}refunds", "weather", "stars", "trains", "tides")
PAIR = ("{shop}orders", "{shop}refunds")
SPREAD = ("news", "sport", *PAIR)
"""Topics of one subscription in parts."""
CLIENTS = ("ann", "bob", "cleo", "dan", "eve", *(f"worker/{number:016x}" for number in range(3)))
GROUPS = ("red", "blue")
GONE = -1
"""The epoch of a simulated name that has been used up."""


class Journal:
    """A machine, its records and bodies. Everything goes through bytes, as on a disk."""

    def __init__(self) -> None:
        self.machine = Machine(SETTINGS, RingPolicy())
        self._space = bytearray()
        self._records: list[tuple[bytes, int, int]] = []
        self._indexes: list[bytes] = []
        self._snapshot = b""

    def apply(self, command: Command, time_ms: int, bodies: tuple[bytes | memoryview, ...] = ()) -> object:
        """Writes a record and applies it."""
        address = len(self._space) + 16
        self._space += bytes(16) + b"".join(bodies)
        data = encode_command(command)
        self._records.append((data, time_ms, address))
        return self.machine.apply(decode_command(data), time_ms, address)

    def read(self, place: Place) -> bytes:
        """A stored body, as far as it counts."""
        body = bytes(self._space[place.address : place.address + place.size_bytes])
        return body if place.kept is None else b"|".join([body.split(b"|")[each] for each in place.kept])

    def seal(self) -> None:
        """Begins a new segment."""
        index, self._snapshot = self.machine.seal()
        self._indexes.append(index)
        self._records = []
        self.machine.mark_sealed()

    def restart(self) -> None:
        """Rebuilds the state."""
        machine = Machine(SETTINGS, RingPolicy())
        if self._snapshot:
            machine.restore(self._snapshot, self._indexes)
        for data, time_ms, address in self._records:
            try:
                machine.apply(decode_command(data), time_ms, address)
            except TidingsError:
                continue
        before, self.machine = self.machine, machine
        changed = differences(whole(self), whole(self, before))
        assert not changed, f"a restart changed {changed}"

    def carry(self, name: str, entry: int, time_ms: int) -> None:
        """Copies a batch to the journal's end."""
        topic = self.machine.topics[name]
        place = Place(topic.addresses[entry], topic.sizes[entry])
        carried = Carried(name, topic.offsets[entry], place.size_bytes)
        self.apply(Carry((carried,)), time_ms, (self.read(place),))


# What can be asked of a topic and of a client, no matter who has them.


def describe_topic(journal: Journal, name: str, machine: Machine | None = None) -> dict[str, Any]:
    """Everything that anybody could ever be told about a topic."""
    machine = machine or journal.machine
    topic = machine.topics.get(name)
    lasts = {each.name: track.last for each in machine.clients.values() if (track := each.tracks.get(name))}
    if topic is None:
        return {"retired": machine.retired.get(name, 0), "lasts": sorted(lasts.items())}
    batches = []
    for entry, first in enumerate(topic.offsets):
        messages = journal.read(topic.place(entry)).split(b"|")
        assert len(messages) == topic.end_of(entry) - first
        batches.append((first, topic.times[entry], topic.shared.get(first), messages))
    return {
        "edges": (topic.first_offset, topic.next_offset, topic.acked_offset, machine.used_at_ms.get(name, 0)),
        "batches": batches,
        "ids": [(at_ms, each, topic.ids[each]) for at_ms, each in topic.id_times],
        "lasts": sorted(lasts.items()),
        "places": {
            publisher: [
                machine.clients[publisher].tracks[name].find(each, topic.first_offset) for each in range(1, last + 1)
            ]
            for publisher, last in sorted(lasts.items())
        },
        "readers": sorted(
            (key, each.cursors, each.starts, each.made, each.reader_epoch, each.reading, each.sent)
            for key, each in machine.readers.get(name, {}).items()
        ),
        "groups": [
            (key, msgspec.to_builtins(group.state())) for key, group in sorted(machine.groups_of.get(name, {}).items())
        ],
    }


def describe_home(machine: Machine, name: str) -> object:
    """Everything about a client at its home."""
    client = machine.clients.get(name)
    if client is None:
        return None
    return (client.epoch, client.token, client.anonymous, list(client.past_tokens))


def whole(journal: Journal, machine: Machine | None = None) -> dict[str, Any]:
    """All of a state."""
    machine = machine or journal.machine
    return {
        "topics": {name: describe_topic(journal, name, machine) for name in TOPICS},
        "homes": {name: describe_home(machine, name) for name in CLIENTS},
        "ring": (ring := ring_of(machine)) and ring.state(),
    }


class Flight(NamedTuple):
    """A message on its way."""

    to: bytes
    frames: list[Any]


class Group:
    """A group and its leader now."""

    def __init__(self, world: World, name: bytes) -> None:
        self._world = world
        self.name = name
        self.journal = Journal()
        self.pending: list[Persist] = []
        self.term = 0
        self.handoff = self._lead()

    @property
    def machine(self) -> Machine:
        return self.journal.machine

    @property
    def ring(self) -> Ownership | None:
        return ring_of(self.machine)

    @property
    def descriptor(self) -> GroupDescriptor:
        return GroupDescriptor(
            self.name, (f"{self.name.decode()}-1", f"{self.name.decode()}-2"), f"{self.term}", self.term
        )

    def _lead(self) -> Handoff:
        self.term += 1
        return Handoff(self.machine, self.journal.read, self._world.find_descriptor, LIMITS)

    def change_leader(self) -> None:
        """Somebody else leads, who knows what is in the journal; what was on its way there may get lost."""
        if self._world.rng.random() < 0.5:
            self.pending.clear()
        if self._world.rng.random() < 0.5:
            self.journal.restart()
        self.handoff = self._lead()

    def run(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ToGroup):
                frames = encode_message(self.descriptor.leader, effect.message, effect.bodies)
                self._world.send(Flight(effect.descriptor.group, [bytes(frame) for frame in frames]))
            else:
                assert isinstance(effect, Persist)
                self.pending.append(effect)

    def apply_next(self, loss: float) -> None:
        """One command that the leader wanted is applied, or lost."""
        if self.pending:
            persist = self.pending.pop(0)
            if self._world.rng.random() >= loss:
                try:
                    self.journal.apply(persist.command, self._world.now_ms, persist.bodies)
                except TidingsError:
                    return


class World:
    """Two groups, the way between them, and clients."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 1_000_000
        self.flights: list[Flight] = []
        self.loss = self.repeats = 0.1
        self.groups = {name: Group(self, name) for name in (b"east", b"west")}
        self.reference = Journal()
        self.sequences: dict[tuple[str, str], int] = {}
        self.epochs: dict[str, int] = {}
        self.accepted = 0
        self._seen: object = None
        self.moved = 0
        self._begin(*self.groups.values())

    def _begin(self, east: Group, west: Group) -> None:
        east.journal.apply(Claim((WHOLE,)), self.now_ms)
        west.journal.apply(Claim(()), self.now_ms)

    def find_descriptor(self, group: bytes) -> GroupDescriptor | None:
        return self.groups[group].descriptor if self.rng.random() < 0.7 else None

    def send(self, flight: Flight) -> None:
        if self.rng.random() >= self.loss:
            self.flights.append(flight)
        if self.rng.random() < self.repeats:
            self.flights.append(flight)

    # Time passes.

    def step(self) -> None:
        """Something happens: a message arrives, a command is applied, time passes, somebody else leads."""
        self.now_ms += self.rng.randrange(200)
        group = self.groups[b"east" if self.rng.random() < 0.5 else b"west"]
        what = self.rng.random()
        if what < 0.4 and self.flights:
            flight = self.flights.pop(self.rng.randrange(len(self.flights)))
            header = decode_header(flight.frames)
            receiver = self.groups[flight.to]
            receiver.run(receiver.handoff.receive(self.now_ms, header.message, tuple(flight.frames[2:])))  # type: ignore[arg-type]
        elif what < 0.7 and group.pending:
            group.apply_next(self.loss)
        elif what < 0.95:
            group.run(group.handoff.tick(self.now_ms, group.descriptor))
        elif what < 0.97:
            group.change_leader()
        elif what < 0.985:
            group.journal.seal()
        else:
            self._carry(group)
        self.check_owners()

    def _carry(self, group: Group) -> None:
        stored = [topic for topic in group.machine.topics.values() if topic.offsets]
        if stored:
            topic = self.rng.choice(stored)
            group.journal.carry(topic.name, self.rng.randrange(len(topic.offsets)), self.now_ms)

    def check_owners(self) -> None:
        """No point has two owners, and one that has none is on its way from one to the other."""
        east, west = (group.ring for group in self.groups.values())
        assert east is not None and west is not None
        seen = (east.ranges, west.ranges, east.handing_off, west.handing_off)
        if seen == self._seen:
            return
        self._seen = seen
        assert not common(east.ranges, west.ranges), "two groups own the same"
        found = [*east.ranges, *west.ranges]
        for name, source, target in ((b"east", east, west), (b"west", west, east)):
            if source.handing_off is not None and target.taken_over.get(name, 0) < source.handing_off.number:
                assert not common(found, source.handing_off.ranges), "something that was given is owned"
                found += source.handing_off.ranges
        assert joined(found) == (WHOLE,), "something is owned by nobody"

    # Clients.

    def owner(self, point: bytes) -> Group | None:
        for group in self.groups.values():
            if group.ring is not None and owns(group.ring.ranges, point):
                return group
        return None

    @property
    def is_still(self) -> bool:
        """Whether nothing is frozen."""
        return all(group.ring is not None and group.ring.handing_off is None for group in self.groups.values())

    def ask(self, command: Command, point: bytes, bodies: tuple[bytes, ...] = ()) -> bool:
        """A client's command at the owner of what it is about; the reference does the same. Whether it was accepted."""
        group = self.owner(point)
        if group is None or self.rng.random() < 0.05:
            for other in self.groups.values():
                if other is not group:
                    self.expect_moved(other, command, bodies)
            if group is None:
                return False
        client = getattr(command, "client", None)
        ring = group.ring
        if client is not None and not isinstance(command, Open) and ring is not None and not ring.owns_home(client):
            group.journal.apply(Adopt(client, self.epochs.get(client, 0)), self.now_ms)
        given, expected = (self._done(journal, command, bodies) for journal in (group.journal, self.reference))
        assert given == expected, (command, given, expected)
        self.accepted += 1
        return not isinstance(given, str)

    def _done(self, journal: Journal, command: Command, bodies: tuple[bytes, ...]) -> object:
        try:
            return msgspec.to_builtins(journal.apply(command, self.now_ms, bodies))
        except TidingsError as error:
            return f"{type(error).__name__}: {error}"

    def expect_moved(self, group: Group, command: Command, bodies: tuple[bytes, ...]) -> None:
        """Anyone who does not own something says so, and does nothing."""
        if isinstance(command, Trim | Collect | Close):
            return
        before = whole(group.journal) if self.rng.random() < 0.1 else None
        answer = self._done(group.journal, command, bodies)
        assert isinstance(answer, str) and answer.startswith(Moved.__name__), (command, answer)
        assert before is None or whole(group.journal) == before
        self.moved += 1

    def work(self) -> None:
        """One client does something."""
        rng = self.rng
        client, topic = rng.choice(CLIENTS), rng.choice(TOPICS)
        epoch = self.epochs.get(client, 0)
        if epoch == GONE:
            return
        if not epoch or rng.random() < 0.03:
            self._open(client)
            return
        what = rng.random()
        if what < 0.45:
            self._put(client, epoch, topic)
        elif what < 0.55:
            topics = PAIR if topic in PAIR and rng.random() < 0.7 else (topic,)
            start = rng.choice(("now", "earliest", "last"))
            whole = SPREAD if topic in SPREAD and rng.random() < 0.3 else ()
            if whole and topic in PAIR:
                topics = PAIR
            self.ask(Subscribe(client, epoch, topics, start, whole), point_of(topic))  # type: ignore[arg-type]
        elif what < 0.75:
            self._read(client, epoch)
        elif what < 0.9:
            self._share(client, epoch, topic)
        else:
            self._tidy(client, epoch, topic)

    def _open(self, client: str) -> None:
        token = self.rng.randbytes(8)
        if self.ask(Open(client, token, client.startswith("worker/")), home_of(client)):
            self.epochs[client] = self.reference.machine.clients[client].epoch

    def _put(self, client: str, epoch: int, topic: str) -> None:
        rng = self.rng
        topics = PAIR if topic in PAIR and rng.random() < 0.5 else (topic,)
        count = rng.randint(1, 4)
        tracks = self.reference.machine.clients[client].tracks
        lasts = {each: tracks[each].last if each in tracks else 0 for each in topics}
        back = rng.choice((0, 0, 0, 0, 1, 3, -1))
        targets = tuple(Target(each, max(1, last + 1 - back)) for each, last in lasts.items())
        ids = None
        if rng.random() < 0.4:
            ids = tuple(rng.choice((None, f"id-{rng.randrange(30)}")) for _ in range(count))
        body = b"|".join(
            b"%s-%d-%d" % (client.encode(), self.now_ms, each) * rng.randint(1, 9) for each in range(count)
        )
        if rng.random() < 0.02:
            body = b"|".join(bytes([65 + each]) * 500 for each in range(count))
        self.ask(Write(client, epoch, (BatchWrite(targets, count, len(body), ids),)), point_of(topic), (body,))

    def _read(self, client: str, epoch: int) -> None:
        rng, machine = self.rng, self.reference.machine
        mine = sorted(machine.owned.get(client, {}))
        if not mine:
            return
        subscription = machine.subscriptions[rng.choice(mine)]
        topics, whole = subscription.topics, subscription.whole
        point = point_of(topics[0])
        positions = tuple(Position(each, rng.randint(0, machine.topics[each].next_offset)) for each in topics)
        what = rng.random()
        if what < 0.6:
            self.ask(Write(client, epoch, (), (Acknowledgement(topics, positions, 0, whole),)), point)
        elif what < 0.9:
            self.ask(Attach(client, epoch, topics, positions, whole), point)
        else:
            self.ask(Unsubscribe(client, epoch, topics, whole), point)

    def _share(self, client: str, epoch: int, topic: str) -> None:
        rng, machine = self.rng, self.reference.machine
        group = rng.choice(GROUPS)
        known = machine.groups.get((group, topic))
        if known is None or client not in known.members or rng.random() < 0.2:
            self.ask(Join(client, epoch, group, topic, "earliest", "key"), point_of(topic))
        elif rng.random() < 0.15:
            self.ask(Leave(client, epoch, group, topic), point_of(topic))
        else:
            end = machine.topics[topic].next_offset
            offsets = sorted(rng.sample(range(end + 1), min(end + 1, rng.randint(0, 4))))
            start = rng.randint(0, end)
            self.ask(GroupAck(client, epoch, group, topic, ((start, start + 2),), offsets), point_of(topic))

    def _tidy(self, client: str, epoch: int, topic: str) -> None:
        rng, machine = self.rng, self.reference.machine
        known = machine.topics.get(topic)
        what = rng.random()
        if what < 0.5 and known is not None:
            self.ask(Trim((Position(topic, rng.randint(0, known.next_offset)),)), point_of(topic))
        elif what < 0.7:
            keys = tuple(key for key in machine.groups if key[1] == topic)
            self.ask(Collect(keys, (topic,)), point_of(topic))
        elif what < 0.8 and self.is_still:
            self._close(client, epoch)

    def _close(self, client: str, epoch: int) -> None:
        """A session ends everywhere; while something is frozen, it only half would."""
        read = [each for each in self.reference.machine.owned.get(client, {}).values() if each.reading]
        detached = tuple(
            Detach(each.topics, tuple(Position(name, each.cursors[name]) for name in each.topics), each.whole)
            for each in read
        )
        self._done(self.reference, Close(client, epoch, detached), ())
        for group in self.groups.values():
            if client in group.machine.clients:
                self._done(group.journal, Adopt(client, epoch), ())
                self._done(group.journal, Close(client, epoch, detached), ())
        if client not in self.reference.machine.clients:
            self.epochs[client] = GONE

    # The comparison.

    def compare(self) -> None:
        """Anyone who owns something knows the same of it as the reference."""
        for name in TOPICS:
            group = self.owner(point_of(name))
            if group is not None:
                changed = differences(describe_topic(group.journal, name), describe_topic(self.reference, name), name)
                assert not changed, f"at its owner {changed}"
        for name in CLIENTS:
            group = self.owner(home_of(name))
            if group is not None:
                assert describe_home(group.machine, name) == describe_home(self.reference.machine, name), name

    def check_forgotten(self) -> None:
        """Nothing is left of what has been given away."""
        for group in self.groups.values():
            machine, ring = group.machine, group.ring
            assert ring is not None
            kept = (*ring.ranges, *(ring.taking_over.ranges if ring.taking_over else ()))
            assert all(owns(kept, point_of(name)) for name in (*machine.topics, *machine.retired))
            subscriptions = machine.subscriptions.values()
            assert all(owns(kept, point_of(topic)) for each in subscriptions for topic in each.topics)
            assert all(owns(kept, point_of(topic)) for _, topic in machine.groups)
            for client in machine.clients.values():
                assert all(owns(kept, point_of(name)) for name in client.tracks)
                assert owns(kept, home_of(client.name)) or not client.token

    # A whole run.

    def ranges_to_move(self, source: Group) -> KeyRanges:
        ring = source.ring
        assert ring is not None
        if self.rng.random() < 0.2:
            return ring.ranges
        return common(ring.ranges, (KeyRange(self.rng.randbytes(32), self.rng.randbytes(32)),))

    def move(self, source: Group, target: Group) -> None:
        """Some ranges go from one group to the other, while clients work."""
        ranges = self.ranges_to_move(source)
        if not ranges:
            return
        leaves = ranges == source.ring.ranges and bool(target.ring.ranges)  # type: ignore[union-attr]
        self.loss = self.repeats = self.rng.choice((0.0, 0.1, 0.3))
        works = self.rng.choice((0.05, 0.3, 0.8))
        for turn in range(20_000):
            ring = target.ring
            assert ring is not None
            if ring.taking_over is None and self.is_still and not without(ranges, ring.ranges):
                return
            if turn > 2_000:
                self.loss = self.repeats = works = 0.0
            if turn % 8:
                pass
            elif leaves:
                source.handoff.leave(target.descriptor)
            elif ring.taking_over is None:
                target.handoff.wish(ranges, source.descriptor)
            self.step()
            if self.rng.random() < works:
                self.work()
        raise AssertionError("the handoff came to no end")

    def run(self, moves: int = 3) -> None:
        """Everything of one seed."""
        for _ in range(120):
            self.work()
        for _ in range(moves):
            source, target = self.rng.sample(list(self.groups.values()), 2)
            self.move(source, target)
            self.compare()
            for _ in range(20):
                self.work()
        self.compare()
        self.check_forgotten()
        for group in self.groups.values():
            group.journal.restart()
        self.compare()


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Where two descriptions differ, so that a failure can be read."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = dict.fromkeys((*one, *other))
        return [each for key in keys for each in differences(one.get(key), other.get(key), f"{where}/{key}")]
    return [] if one == other else [f"{where}: {one!r} is not {other!r}"]
