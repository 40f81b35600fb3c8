"""A model of a group: it drives `Lanes` as a broker and its members would, and knows what must hold.

`World` watches every parcel and every answer. Its checks are the promises of `lanes.py`, stated on what goes
in and out; `check_books` looks inside and finds whatever is lost, doubled or weighed wrongly.
"""

from __future__ import annotations

import random

from tidings.protocols.broker.lanes import Lanes
from tidings.protocols.broker.members import Lane, LaneKey, LaneSettings, Parcel, Settlement, Stale
from tidings.protocols.broker.progress import Progress

SETTINGS = LaneSettings(
    window_messages_max=60,
    parcel_messages_max=5,
    redelivery_ms=1_000,
    slow_ack_ms=400,
    slow_window_ms=5_000,
    attempts_max=6,
)


class Hand:
    """A parcel that a member has, as the member sees it."""

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
        self.keys: list[LaneKey | None] = []
        self.offered = 0
        self.progress = Progress()
        self.dead_letters: list[int] = []
        self.hands: dict[str, dict[int, Hand]] = {}
        self.settling: dict[Settlement, str] = {}
        self.old_answers: list[tuple[str, int, list[int]]] = []
        self.order_of_ends: list[int] = []
        self.first_number = 1

    # What may happen.

    def publish(self, keys: list[LaneKey | None]) -> None:
        self.keys += keys

    def offer(self) -> None:
        hunger = self.lanes.hunger()
        end = min(len(self.keys), self.offered + hunger)
        offsets = [offset for start, stop in self.progress.gaps(self.offered, end) for offset in range(start, stop)]
        self.lanes.offer_some(offsets, [self.keys[offset] for offset in offsets])
        self.offered = max(self.offered, end)

    def join(self, member: str, room: int) -> None:
        self._lose(member)
        self.lanes.join(member, self.now_ms)
        self.lanes.grant(member, room)
        self.hands[member] = {}

    def leave(self, member: str) -> None:
        self.lanes.leave(member, self.now_ms)
        self._lose(member)
        del self.hands[member]

    def _lose(self, member: str) -> None:
        for hand in self.hands.get(member, {}).values():
            self.old_answers.append((member, hand.number, list(hand.offsets)))

    def pick(self) -> list[Parcel]:
        parcels = self.lanes.pick(self.now_ms)
        for parcel in parcels:
            self._check_parcel(parcel)
        for member in dict.fromkeys(parcel.member for parcel in parcels):
            state = next(each for each in self.lanes.describe().members if each.member == member)
            held = sum(len(hand.offsets) for hand in self.hands[member].values())
            assert state.in_flight == held
        return parcels

    def settle(self, member: str, number: int, offsets: list[int] | None) -> None:
        hand = self.hands[member][number]
        settlement = self.lanes.settle(member, number, offsets, self.now_ms)
        wanted = list(hand.offsets) if offsets is None else offsets
        assert sorted(settlement.offsets) == sorted(wanted), "what is in hand can be settled"
        for offset in settlement.offsets:
            del hand.offsets[offset]
        if not hand.offsets:
            del self.hands[member][number]
        self.settling[settlement] = member
        self.old_answers.append((member, number, wanted))

    def journal(self, settlement: Settlement, accepted: bool) -> None:
        member = self.settling.pop(settlement)
        if accepted:
            for offset in settlement.offsets:
                assert not self.progress.done(offset), "a message ends once"
                self.progress.add(offset, offset + 1)
                self.order_of_ends.append(offset)
            self.lanes.confirm(settlement)
            return
        back = self.lanes.unsettle(settlement)
        assert set(back) <= set(settlement.offsets)
        if back:
            hand = self.hands[member].setdefault(settlement.number, Hand(settlement.number, settlement.attempt, []))
            hand.offsets = dict.fromkeys(sorted([*hand.offsets, *back]))

    def nack(self, member: str, number: int, offsets: list[int], delay_ms: int) -> None:
        taken = self.lanes.nack(member, number, offsets, self.now_ms, delay_ms)
        assert set(offsets) <= set(taken)
        firsts: dict[LaneKey, int] = {}
        for offset in offsets:
            key = self.keys[offset]
            if key is not None:
                firsts[key] = min(offset, firsts.get(key, offset))
        for offset in taken:
            key = self.keys[offset]
            assert offset in offsets or (key is not None and offset > firsts[key])
        for each in list(self.hands[member].values()):
            gone = [offset for offset in each.offsets if offset in taken]
            for offset in gone:
                del each.offsets[offset]
            if gone:
                self.old_answers.append((member, each.number, gone))
            if not each.offsets:
                del self.hands[member][each.number]

    def answer_late(self, index: int) -> None:
        """An answer comes again, or too late: whatever it is, nothing in another hand may end by it."""
        member, number, offsets = self.old_answers[index % len(self.old_answers)]
        hand = self.hands.get(member, {}).get(number)
        still = [offset for offset in offsets if hand is not None and offset in hand.offsets]
        offsets = [offset for offset in offsets if offset not in still]
        try:
            settlement = self.lanes.settle(member, number, offsets, self.now_ms)
        except Stale:
            assert hand is None
            return
        assert not settlement.offsets, "no stale answer is accepted"
        self.lanes.confirm(settlement)

    def tick(self, after_ms: int) -> None:
        self.now_ms += after_ms
        self.lanes.tick(self.now_ms)
        for member in self.hands:
            if not self.lanes.is_active(member):
                self._lose(member)
                self.hands[member] = {}

    def bury(self) -> None:
        spent = self.lanes.exhausted()
        if spent is not None:
            held = self._held()
            for offset in spent.offsets:
                assert offset not in held and not self.progress.done(offset)
                self.progress.add(offset, offset + 1)
                self.dead_letters.append(offset)
            self.lanes.confirm(spent)

    def restart(self, accepted: int) -> None:
        """The broker dies and comes back; `accepted` settlements, the first ones, had reached the journal."""
        for number, settlement in enumerate(list(self.settling)):
            member = self.settling.pop(settlement)
            if number < accepted:
                for offset in settlement.offsets:
                    self.progress.add(offset, offset + 1)
                    self.order_of_ends.append(offset)
            else:  # A member has its work in hand until it hears of the journal.
                self._keep_in_hand(member, settlement)
        self._drop_behind()
        self.first_number = self.lanes._next_number + 10
        rooms = {name: member.room for name, member in self.lanes._members.items()}
        self.lanes = self.kind(self.settings, self.first_number)
        self.offered = 0
        claims = self.hands
        self.hands = {}
        self.waiting_claims = [(member, rooms[member], list(hands.values())) for member, hands in claims.items()]

    def _keep_in_hand(self, member: str, settlement: Settlement) -> None:
        if self.lanes._members.get(member) is settlement.holder and self.lanes.is_active(member):
            hand = self.hands[member].setdefault(settlement.number, Hand(settlement.number, settlement.attempt, []))
            hand.offsets = dict.fromkeys(sorted([*hand.offsets, *settlement.offsets]))

    def _drop_behind(self) -> None:
        """A member that gave a message back does not go on with those behind it in its lane."""
        for hands in self.hands.values():
            mine = {offset: hand for hand in hands.values() for offset in hand.offsets}
            for offset, hand in sorted(mine.items(), key=lambda pair: pair[0]):
                key = self.keys[offset]
                if key is not None and any(
                    self.keys[earlier] == key and not self.progress.done(earlier) and earlier not in mine
                    for earlier in range(self.progress.low, offset)
                ):
                    del hand.offsets[offset]
                    del mine[offset]

    waiting_claims: list[tuple[str, int, list[Hand]]] = []

    def return_one(self) -> None:
        """After a restart: one member is back and says what it has."""
        if not self.waiting_claims:
            return
        member, room, hands = self.waiting_claims.pop(0)
        if member in self.lanes:
            return
        self.join(member, room)
        for old in sorted(hands, key=lambda hand: hand.number):
            offsets = [offset for offset in old.offsets if not self.progress.done(offset)]
            keys = [self.keys[offset] for offset in offsets]
            if self.lanes.unsettled + len(offsets) > self.settings.window_messages_max:
                continue
            parcel = self.lanes.claim(member, offsets, keys, old.attempt, self.now_ms)
            if parcel is None:
                continue
            self._revoke(member, parcel)
            self._check_parcel(parcel)

    def _revoke(self, winner: str, parcel: Parcel) -> None:
        """A claim may win messages from another member, and with them what that had behind them."""
        for offset in parcel.offsets:
            for member, hands in self.hands.items():
                for hand in list(hands.values()):
                    if offset not in hand.offsets:
                        continue
                    assert member != winner and hand.attempt < parcel.attempt, "the higher attempt wins"
                    for each in list(hands.values()):
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
                            del hands[each.number]

    # What must hold.

    def _held(self, *, settling: bool = True) -> dict[int, str]:
        held: dict[int, str] = {}
        for member, hands in self.hands.items():
            for hand in hands.values():
                for offset in hand.offsets:
                    assert offset not in held, "each message is in one hand at most"
                    held[offset] = member
        for settlement, member in self.settling.items() if settling else ():
            for offset in settlement.offsets:
                assert offset not in held, "a message that is being settled is in nobody's hand"
                held[offset] = member
        return held

    def _check_parcel(self, parcel: Parcel) -> None:
        """C3, C9: order, one owner, nothing twice."""
        assert parcel.offsets and list(parcel.offsets) == sorted(set(parcel.offsets))
        again = self.hands[parcel.member].get(parcel.number)
        if again is not None:
            assert list(again.offsets) == list(parcel.offsets) and parcel.attempt == again.attempt
            return
        assert parcel.number >= self.first_number
        held = self._held()
        owners = {self.keys[offset]: member for offset, member in held.items()}
        here = dict.fromkeys(parcel.offsets)
        for offset in parcel.offsets:
            assert offset not in held, "each message is in one hand at most"
            assert not self.progress.done(offset), "what is settled is never sent again"
            key = self.keys[offset]
            if key is None:
                continue
            assert owners.get(key, parcel.member) == parcel.member, "a lane has one owner"
            for earlier in range(self.progress.low, offset):
                if self.keys[earlier] == key and not self.progress.done(earlier):
                    assert earlier in here or held.get(earlier) == parcel.member, "a lane keeps its order"
        self.hands[parcel.member][parcel.number] = Hand(parcel.number, parcel.attempt, parcel.offsets)

    def check_order(self) -> None:
        """C3: nobody has a message in hand that stands behind one of its lane that is in no hand, or in another's."""
        held = self._held()
        for offset, member in self._held(settling=False).items():
            key = self.keys[offset]
            for earlier in range(self.progress.low, offset):
                if key is not None and self.keys[earlier] == key and not self.progress.done(earlier):
                    spent = earlier in self.lanes._spent
                    assert spent or held.get(earlier) == member, "nobody works on a lane out of order"

    def check_books(self) -> None:
        """Every unsettled message is in one place, and the lanes know it."""
        lanes = self.lanes
        self._held()
        places: list[int] = lanes._pool_offsets[lanes._pool_head :]
        counts: dict[Lane, int] = {}
        burdens: dict[str, int] = dict.fromkeys(lanes._members, 0)
        for member in lanes._members.values():
            waiting = member.repeats + list(zip(member.offsets, member.lanes, strict=True))[member.head :]
            flights = [pair for flight in member.flights.values() for pair in dict(flight.unsettled).items()]
            assert len(flights) == member.in_flight and len(waiting) == member.waiting
            assert all(lane.hold is None for _, lane in waiting), "a held lane has nothing waiting with a member"
            for offset, lane in waiting + flights:
                assert lane.member is member
                places.append(offset)
                counts[lane] = counts.get(lane, 0) + 1
        for settlement in self.settling:
            for offset, lane in zip(settlement.offsets, settlement.lanes, strict=True):
                places.append(offset)
                counts[lane] = counts.get(lane, 0) + 1
        for offset, lane in lanes._spent.items():
            places.append(offset)
            counts[lane] = counts.get(lane, 0) + 1
        loose = {lane: None for _, _, lane, hold in lanes._delayed if lane.hold is hold and lane.key is None}
        loose.update({lane: None for lane in lanes._line if lane.key is None})
        for lane in [*lanes._lanes.values(), *loose]:
            if lane.hold is not None:
                assert lane.hold.queue == sorted(set(lane.hold.queue))
                places += lane.hold.queue
                assert lane.count or lane.hold.ready_ms or lane.hold.lined_up
                target = lane.hold.target
                if target is not None and lanes._members.get(target.name) is target:
                    burdens[target.name] += lanes._weight
            else:
                assert lane.member is not None
                assert lanes._members.get(lane.member.name) is lane.member, "a lane is bound to a member that is there"
                burdens[lane.member.name] += lanes._weight
            if lane.key is not None:
                assert lane.count == counts.pop(lane, 0), "a lane counts what is under way"
                assert lane.count or lane.hold is not None, "idle lanes are forgotten"
        assert all(lane.key is None for lane in counts)
        assert len(places) == len(set(places)) == lanes.unsettled
        assert not any(self.progress.done(offset) for offset in places)
        unknown = set(range(self.offered)) - set(places)
        assert all(self.progress.done(offset) for offset in unknown), "nothing is dropped"
        for member in lanes._members.values():
            assert member.burden == burdens[member.name], "a member is weighed by its lanes"

    def finish(self) -> None:
        """Somebody able comes, and in the end everything is settled."""
        while self.waiting_claims:
            self.return_one()
        for settlement in list(self.settling):
            self.journal(settlement, accepted=True)
        self.join("the last", 30)
        for _ in range(50 + 10 * len(self.keys)):
            self.bury()
            self.offer()
            self.pick()
            for member in list(self.hands):
                for number in list(self.hands[member]):
                    self.settle(member, number, None)
            for settlement in list(self.settling):
                self.journal(settlement, accepted=True)
            self.check_books()
            self.tick(300)
            if self.progress.low == len(self.keys):
                break
        assert self.progress.low == len(self.keys), "in the end everything is settled"
        state = self.lanes.describe()
        assert (state.lanes, state.unsettled, self.lanes._attempts) == (0, 0, {})
        assert sorted(self.order_of_ends + self.dead_letters) == list(range(len(self.keys))), "each ends once"


NAMES = ("ada", "bob", "cyd", "dot")
KEYS: tuple[LaneKey | None, ...] = (b"red", b"green", b"blue", ("eve", b"red"), None, b"red")


def step(world: World, chance: random.Random) -> None:
    """One thing that may happen."""
    kind = chance.choice(
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
    hands = [(member, number) for member, hands in world.hands.items() for number in hands]
    members = list(world.hands)
    if kind == "publish":
        world.publish([chance.choice(KEYS) for _ in range(chance.randint(1, 12))])
    elif kind == "offer":
        world.offer()
    elif kind == "pick":
        world.pick()
    elif kind in ("settle", "nack", "extend") and hands:
        member, number = chance.choice(hands)
        offsets = list(world.hands[member][number].offsets)
        some = chance.sample(offsets, chance.randint(1, len(offsets)))
        if kind == "settle":
            world.settle(member, number, chance.choice([None, some, some]))
        elif kind == "nack":
            world.nack(member, number, some, chance.choice([0, 0, 200]))
        else:
            world.lanes.extend(member, number, world.now_ms)
    elif kind in ("journal", "refuse") and world.settling:
        world.journal(chance.choice(list(world.settling)), accepted=kind == "journal")
    elif kind == "join":
        waiting = [member for member, _, _ in world.waiting_claims]
        free = [name for name in NAMES if name not in waiting]
        if free:
            world.join(chance.choice(free), chance.choice([1, 3, 10]))
    elif kind == "leave" and members:
        world.leave(chance.choice(members))
    elif kind == "tick":
        world.tick(chance.choice([10, 100, 500, 1_000]))
    elif kind == "late" and world.old_answers:
        world.answer_late(chance.randrange(1_000))
    elif kind == "grant" and members:
        world.lanes.grant(chance.choice(members), chance.choice([0, 1, 4, 20]))
    elif kind == "activate" and members:
        world.lanes.activate(chance.choice(members))
    elif kind == "restart" and chance.random() < 0.2 and not world.waiting_claims:
        world.restart(chance.randint(0, 3))
    elif kind == "return":
        world.return_one()
    elif kind == "bury":
        world.bury()
    world.check_order()
    world.check_books()


def run(seed: int, steps: int, kind: type[Lanes] = Lanes, world: type[World] = World) -> World:
    """A whole story by one seed."""
    chance = random.Random(seed)
    story = world(kind)
    for _ in range(steps):
        step(story, chance)
    story.finish()
    return story
