"""A model of a group: it drives `Lanes` as a broker and its members would, and knows what must hold.

`World` watches every batch and every answer. Its checks are the promises of `lanes.py`, stated on what goes
in and out; `check_books` looks inside and finds whatever is lost, doubled or weighed wrongly.
"""

from __future__ import annotations

import random

from tidings.protocols.broker.consumer_groups.lanes import Lanes
from tidings.protocols.broker.consumer_groups.members import (
    Lane,
    LaneSettings,
    OrderingKey,
    PendingAck,
    PickedBatch,
    Stale,
)
from tidings.protocols.broker.consumer_groups.progress import Progress

SETTINGS = LaneSettings(
    window_messages_max=60,
    batch_messages_max=5,
    redelivery_ms=1_000,
    slow_ack_ms=400,
    slow_window_ms=5_000,
    attempts_max=6,
)


class HeldBatch:
    """A batch that a member has, as the member sees it."""

    def __init__(self, number: int, attempt: int, offsets: list[int]) -> None:
        self.number = number
        self.attempt = attempt
        self.offsets = dict.fromkeys(offsets)


class World:
    """A topic, a group and its members, all in the open."""

    def __init__(self, kind: type[Lanes] = Lanes, settings: LaneSettings = SETTINGS) -> None:
        self.kind = kind
        self.settings = settings
        self.lanes = kind(settings)
        self.now_ms = 0
        self.keys: list[OrderingKey | None] = []
        self.offered = 0
        self.progress = Progress()
        self.dead_letters: list[int] = []
        self.held_batches: dict[str, dict[int, HeldBatch]] = {}
        self.acking: dict[PendingAck, str] = {}
        self.old_answers: list[tuple[str, int, list[int]]] = []
        self.order_of_ends: list[int] = []
        self.first_number = 1

    # What may happen.

    def publish(self, keys: list[OrderingKey | None]) -> None:
        self.keys += keys

    def offer(self) -> None:
        credit = self.lanes.credit()
        end = min(len(self.keys), self.offered + credit)
        offsets = [offset for start, stop in self.progress.gaps(self.offered, end) for offset in range(start, stop)]
        self.lanes.offer_some(offsets, [self.keys[offset] for offset in offsets])
        self.offered = max(self.offered, end)

    def join(self, member: str, room: int) -> None:
        self._lose(member)
        self.lanes.join(member, self.now_ms)
        self.lanes.grant(member, room)
        self.held_batches[member] = {}

    def leave(self, member: str) -> None:
        self.lanes.leave(member, self.now_ms)
        self._lose(member)
        del self.held_batches[member]

    def _lose(self, member: str) -> None:
        for held_batch in self.held_batches.get(member, {}).values():
            self.old_answers.append((member, held_batch.number, list(held_batch.offsets)))

    def pick(self) -> list[PickedBatch]:
        batches = self.lanes.pick(self.now_ms)
        for batch in batches:
            self._check_batch(batch)
        for member in dict.fromkeys(batch.member for batch in batches):
            state = next(each for each in self.lanes.describe().members if each.member == member)
            held = sum(len(held_batch.offsets) for held_batch in self.held_batches[member].values())
            assert state.in_flight == held
        return batches

    def ack(self, member: str, number: int, offsets: list[int] | None) -> None:
        held_batch = self.held_batches[member][number]
        ack = self.lanes.ack(member, number, offsets, self.now_ms)
        wanted = list(held_batch.offsets) if offsets is None else offsets
        assert sorted(ack.offsets) == sorted(wanted), "what is in flight can be acked"
        for offset in ack.offsets:
            del held_batch.offsets[offset]
        if not held_batch.offsets:
            del self.held_batches[member][number]
        self.acking[ack] = member
        self.old_answers.append((member, number, wanted))

    def journal(self, ack: PendingAck, accepted: bool) -> None:
        member = self.acking.pop(ack)
        if accepted:
            for offset in ack.offsets:
                assert not self.progress.done(offset), "a message ends once"
                self.progress.add(offset, offset + 1)
                self.order_of_ends.append(offset)
            self.lanes.confirm(ack)
            return
        back = self.lanes.unack(ack)
        assert set(back) <= set(ack.offsets)
        if back:
            held_batch = self.held_batches[member].setdefault(ack.number, HeldBatch(ack.number, ack.attempt, []))
            held_batch.offsets = dict.fromkeys(sorted([*held_batch.offsets, *back]))

    def nack(self, member: str, number: int, offsets: list[int], delay_ms: int) -> None:
        taken = self.lanes.nack(member, number, offsets, self.now_ms, delay_ms)
        assert set(offsets) <= set(taken)
        firsts: dict[OrderingKey, int] = {}
        for offset in offsets:
            key = self.keys[offset]
            if key is not None:
                firsts[key] = min(offset, firsts.get(key, offset))
        for offset in taken:
            key = self.keys[offset]
            assert offset in offsets or (key is not None and offset > firsts[key])
        for each in list(self.held_batches[member].values()):
            gone = [offset for offset in each.offsets if offset in taken]
            for offset in gone:
                del each.offsets[offset]
            if gone:
                self.old_answers.append((member, each.number, gone))
            if not each.offsets:
                del self.held_batches[member][each.number]

    def answer_late(self, index: int) -> None:
        """An answer comes again, or too late: whatever it is, nothing in another hand may end by it."""
        member, number, offsets = self.old_answers[index % len(self.old_answers)]
        held_batch = self.held_batches.get(member, {}).get(number)
        still = [offset for offset in offsets if held_batch is not None and offset in held_batch.offsets]
        offsets = [offset for offset in offsets if offset not in still]
        try:
            ack = self.lanes.ack(member, number, offsets, self.now_ms)
        except Stale:
            assert held_batch is None
            return
        assert not ack.offsets, "no stale answer is accepted"
        self.lanes.confirm(ack)

    def tick(self, after_ms: int) -> None:
        self.now_ms += after_ms
        self.lanes.tick(self.now_ms)
        for member in self.held_batches:
            if not self.lanes.is_active(member):
                self._lose(member)
                self.held_batches[member] = {}

    def dead_letter(self) -> None:
        spent = self.lanes.exhausted()
        if spent is not None:
            held = self._held()
            for offset in spent.offsets:
                assert offset not in held and not self.progress.done(offset)
                self.progress.add(offset, offset + 1)
                self.dead_letters.append(offset)
            self.lanes.confirm(spent)

    def restart(self, accepted: int) -> None:
        """The broker dies and comes back; `accepted` acks, the first ones, had reached the journal."""
        for number, ack in enumerate(list(self.acking)):
            member = self.acking.pop(ack)
            if number < accepted:
                for offset in ack.offsets:
                    self.progress.add(offset, offset + 1)
                    self.order_of_ends.append(offset)
            else:  # A member has its work in flight until it hears of the journal.
                self._keep_in_flight(member, ack)
        self._drop_behind()
        self.first_number = self.lanes._picking._next_number + 10
        rooms = {name: member.room for name, member in self.lanes._handoff.members.items()}
        self.lanes = self.kind(self.settings, self.first_number)
        self.offered = 0
        claims = self.held_batches
        self.held_batches = {}
        self.waiting_claims = [
            (member, rooms[member], list(held_batches.values())) for member, held_batches in claims.items()
        ]

    def _keep_in_flight(self, member: str, ack: PendingAck) -> None:
        if self.lanes._handoff.members.get(member) is ack.holder and self.lanes.is_active(member):
            held_batch = self.held_batches[member].setdefault(ack.number, HeldBatch(ack.number, ack.attempt, []))
            held_batch.offsets = dict.fromkeys(sorted([*held_batch.offsets, *ack.offsets]))

    def _drop_behind(self) -> None:
        """A member that gave a message back does not go on with those behind it in its lane."""
        for held_batches in self.held_batches.values():
            mine = {offset: held_batch for held_batch in held_batches.values() for offset in held_batch.offsets}
            for offset, held_batch in sorted(mine.items(), key=lambda pair: pair[0]):
                key = self.keys[offset]
                if key is not None and any(
                    self.keys[earlier] == key and not self.progress.done(earlier) and earlier not in mine
                    for earlier in range(self.progress.low, offset)
                ):
                    del held_batch.offsets[offset]
                    del mine[offset]

    waiting_claims: list[tuple[str, int, list[HeldBatch]]] = []

    def return_one(self) -> None:
        """After a restart: one member is back and says what it has."""
        if not self.waiting_claims:
            return
        member, room, held_batches = self.waiting_claims.pop(0)
        if member in self.lanes:
            return
        self.join(member, room)
        for old in sorted(held_batches, key=lambda held_batch: held_batch.number):
            offsets = [offset for offset in old.offsets if not self.progress.done(offset)]
            keys = [self.keys[offset] for offset in offsets]
            if self.lanes.unacked + len(offsets) > self.settings.window_messages_max:
                continue
            batch = self.lanes.claim(member, offsets, keys, old.attempt, self.now_ms)
            if batch is None:
                continue
            self._revoke(member, batch)
            self._check_batch(batch)

    def _revoke(self, winner: str, batch: PickedBatch) -> None:
        """A claim may win messages from another member, and with them what that had behind them."""
        for offset in batch.offsets:
            for member, held_batches in self.held_batches.items():
                for held_batch in list(held_batches.values()):
                    if offset not in held_batch.offsets:
                        continue
                    assert member != winner and held_batch.attempt < batch.attempt, "the higher attempt wins"
                    for each in list(held_batches.values()):
                        key = self.keys[offset]
                        gone = [
                            other
                            for other in each.offsets
                            if other == offset or (key is not None and self.keys[other] == key)
                        ]
                        for other in gone:
                            del each.offsets[other]
                        if gone:
                            self.old_answers.append((member, each.number, gone))
                        if not each.offsets:
                            del held_batches[each.number]

    # What must hold.

    def _held(self, *, acking: bool = True) -> dict[int, str]:
        held: dict[int, str] = {}
        for member, held_batches in self.held_batches.items():
            for held_batch in held_batches.values():
                for offset in held_batch.offsets:
                    assert offset not in held, "each message is in one hand at most"
                    held[offset] = member
        for ack, member in self.acking.items() if acking else ():
            for offset in ack.offsets:
                assert offset not in held, "a message that is being acked is in nobody's hand"
                held[offset] = member
        return held

    def _check_batch(self, batch: PickedBatch) -> None:
        """C3, C9: order, one owner, nothing twice."""
        assert batch.offsets and list(batch.offsets) == sorted(set(batch.offsets))
        again = self.held_batches[batch.member].get(batch.number)
        if again is not None:
            assert list(again.offsets) == list(batch.offsets) and batch.attempt == again.attempt
            return
        assert batch.number >= self.first_number
        held = self._held()
        owners = {self.keys[offset]: member for offset, member in held.items()}
        here = dict.fromkeys(batch.offsets)
        for offset in batch.offsets:
            assert offset not in held, "each message is in one hand at most"
            assert not self.progress.done(offset), "what is acked is never sent again"
            key = self.keys[offset]
            if key is None:
                continue
            assert owners.get(key, batch.member) == batch.member, "a lane has one owner"
            for earlier in range(self.progress.low, offset):
                if self.keys[earlier] == key and not self.progress.done(earlier):
                    assert earlier in here or held.get(earlier) == batch.member, "a lane keeps its order"
        self.held_batches[batch.member][batch.number] = HeldBatch(batch.number, batch.attempt, batch.offsets)

    def check_order(self) -> None:
        """C3: nobody has a message in flight that stands behind one of its lane that is in no hand, or in another's."""
        held = self._held()
        for offset, member in self._held(acking=False).items():
            key = self.keys[offset]
            for earlier in range(self.progress.low, offset):
                if key is not None and self.keys[earlier] == key and not self.progress.done(earlier):
                    spent = earlier in self.lanes._handoff.spent
                    assert spent or held.get(earlier) == member, "nobody works on a lane out of order"

    def check_books(self) -> None:
        """Every unacked message is in one place, and the lanes know it."""
        lanes = self.lanes
        self._held()
        places: list[int] = lanes._pool.offsets[lanes._pool.head :]
        counts: dict[Lane, int] = {}
        burdens: dict[str, int] = dict.fromkeys(lanes._handoff.members, 0)
        for member in lanes._handoff.members.values():
            waiting = member.repeats + list(zip(member.offsets, member.lanes, strict=True))[member.head :]
            flights = [pair for flight in member.flights.values() for pair in dict(flight.unacked).items()]
            assert len(flights) == member.in_flight and len(waiting) == member.waiting
            assert all(lane.hold is None for _, lane in waiting), "a held lane has nothing waiting with a member"
            for offset, lane in waiting + flights:
                assert lane.member is member
                places.append(offset)
                counts[lane] = counts.get(lane, 0) + 1
        for ack in self.acking:
            for offset, lane in zip(ack.offsets, ack.lanes, strict=True):
                places.append(offset)
                counts[lane] = counts.get(lane, 0) + 1
        for offset, lane in lanes._handoff.spent.items():
            places.append(offset)
            counts[lane] = counts.get(lane, 0) + 1
        loose = {lane: None for _, _, lane, hold in lanes._pool.delayed if lane.hold is hold and lane.key is None}
        loose.update({lane: None for lane in lanes._handoff.line if lane.key is None})
        for lane in [*lanes._handoff.lanes.values(), *loose]:
            if lane.hold is not None:
                assert lane.hold.queue == sorted(set(lane.hold.queue))
                places += lane.hold.queue
                assert lane.count or lane.hold.ready_ms or lane.hold.lined_up
                target = lane.hold.target
                if target is not None and lanes._handoff.members.get(target.name) is target:
                    burdens[target.name] += lanes._handoff.weight
            else:
                assert lane.member is not None
                assert lanes._handoff.members.get(lane.member.name) is lane.member, (
                    "a lane is bound to a member that is there"
                )
                burdens[lane.member.name] += lanes._handoff.weight
            if lane.key is not None:
                assert lane.count == counts.pop(lane, 0), "a lane counts what is under way"
                assert lane.count or lane.hold is not None, "idle lanes are forgotten"
        assert all(lane.key is None for lane in counts)
        assert len(places) == len(set(places)) == lanes.unacked
        assert not any(self.progress.done(offset) for offset in places)
        unknown = set(range(self.offered)) - set(places)
        assert all(self.progress.done(offset) for offset in unknown), "nothing is dropped"
        for member in lanes._handoff.members.values():
            assert member.burden == burdens[member.name], "a member is weighed by its lanes"

    def finish(self) -> None:
        """Somebody able comes, and in the end everything is acked."""
        while self.waiting_claims:
            self.return_one()
        for ack in list(self.acking):
            self.journal(ack, accepted=True)
        self.join("the last", 30)
        for _ in range(50 + 10 * len(self.keys)):
            self.dead_letter()
            self.offer()
            self.pick()
            for member in list(self.held_batches):
                for number in list(self.held_batches[member]):
                    self.ack(member, number, None)
            for ack in list(self.acking):
                self.journal(ack, accepted=True)
            self.check_books()
            self.tick(300)
            if self.progress.low == len(self.keys):
                break
        assert self.progress.low == len(self.keys), "in the end everything is acked"
        state = self.lanes.describe()
        assert (state.lanes, state.unacked, self.lanes._handoff.attempts) == (0, 0, {})
        assert sorted(self.order_of_ends + self.dead_letters) == list(range(len(self.keys))), "each ends once"


NAMES = ("ada", "bob", "cyd", "dot")
KEYS: tuple[OrderingKey | None, ...] = (b"red", b"green", b"blue", ("eve", b"red"), None, b"red")


def step(world: World, rng: random.Random) -> None:
    """One thing that may happen."""
    kind = rng.choice(
        [
            "publish",
            "join",
            "leave",
            "grant",
            "activate",
            "restart",
            "return",
            "bury",
            "late",
            "refuse",
            "nack",
            "extend",
        ]
        + ["offer", "tick"] * 2
        + ["pick", "settle", "journal"] * 3
    )
    held_batches = [(member, number) for member, held_batches in world.held_batches.items() for number in held_batches]
    members = list(world.held_batches)
    if kind == "publish":
        world.publish([rng.choice(KEYS) for _ in range(rng.randint(1, 12))])
    elif kind == "offer":
        world.offer()
    elif kind == "pick":
        world.pick()
    elif kind in ("settle", "nack", "extend") and held_batches:
        member, number = rng.choice(held_batches)
        offsets = list(world.held_batches[member][number].offsets)
        some = rng.sample(offsets, rng.randint(1, len(offsets)))
        if kind == "settle":
            world.ack(member, number, rng.choice([None, some, some]))
        elif kind == "nack":
            world.nack(member, number, some, rng.choice([0, 0, 200]))
        else:
            world.lanes.extend(member, number, world.now_ms)
    elif kind in ("journal", "refuse") and world.acking:
        world.journal(rng.choice(list(world.acking)), accepted=kind == "journal")
    elif kind == "join":
        waiting = [member for member, _, _ in world.waiting_claims]
        free = [name for name in NAMES if name not in waiting]
        if free:
            world.join(rng.choice(free), rng.choice([1, 3, 10]))
    elif kind == "leave" and members:
        world.leave(rng.choice(members))
    elif kind == "tick":
        world.tick(rng.choice([10, 100, 500, 1_000]))
    elif kind == "late" and world.old_answers:
        world.answer_late(rng.randrange(1_000))
    elif kind == "grant" and members:
        world.lanes.grant(rng.choice(members), rng.choice([0, 1, 4, 20]))
    elif kind == "activate" and members:
        world.lanes.activate(rng.choice(members))
    elif kind == "restart" and rng.random() < 0.2 and not world.waiting_claims:
        world.restart(rng.randint(0, 3))
    elif kind == "return":
        world.return_one()
    elif kind == "bury":
        world.dead_letter()
    world.check_order()
    world.check_books()


def run(seed: int, steps: int, kind: type[Lanes] = Lanes, world: type[World] = World) -> World:
    """A whole story by one seed."""
    rng = random.Random(seed)
    story = world(kind)
    for _ in range(steps):
        step(story, rng)
    story.finish()
    return story
