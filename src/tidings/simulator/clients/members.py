"""Roles of a group's members: loops, batches, handlers, message by message; some leave and join again, some crash."""

from __future__ import annotations

from collections.abc import Callable

from tidings.client import working
from tidings.client.member import Member
from tidings.client.operations import Operation, Until
from tidings.client.serving import Service
from tidings.errors import Fenced, NoSuchTopic, NotSubscribed, Overloaded, TidingsError, Unavailable
from tidings.message import Message
from tidings.protocols.broker.messages import LaneKind
from tidings.simulator.checkers.in_flight import GROUP, TOPIC
from tidings.simulator.clients.client import ClientProcess
from tidings.simulator.clients.publishers import insist

POLL_S = 0.3

Working = Callable[[ClientProcess, Member, "Habits"], Operation[None]]


class Habits:
    """How a member works."""

    def __init__(self, lanes: LaneKind, pace_ms: int, failing: float, crashing: float, leaving: float) -> None:
        self.lanes: LaneKind = lanes
        self.pace_ms = pace_ms
        self.failing = failing
        """How often a message is given back."""
        self.crashing = crashing
        self.leaving = leaving


def done(me: ClientProcess) -> bool:
    """Whether there will be nothing more to do."""
    return me.world.is_quiet and me.world.watch.in_flight.all_acked


def membership(me: ClientProcess, style: Working, habits: Habits) -> Operation[None]:
    """A member for as long as there is work: it joins, works, leaves now and then, and comes back."""
    random = me.world.random
    while not done(me):
        try:
            member = yield from insist(me, lambda: working.join(me.core, GROUP, TOPIC, "earliest", habits.lanes))
            me.world.note(me.label, "is a member")
            yield from style(me, member, habits)
            if random.random() < 0.5 and not me.world.calm:
                me.world.note(me.label, "leaves")
                yield from working.leave(me.core, GROUP, TOPIC)
            else:
                me.world.note(me.label, "closes its subscription")
                yield from working.close(me.core, member)
        except (Unavailable, Overloaded, NotSubscribed, NoSuchTopic, Fenced) as error:
            _bear(me, error)
        yield from me.sleep(random.randint(1, 400))


def _bear(me: ClientProcess, error: TidingsError) -> None:
    """What a member goes on after; not when a newer process has its name."""
    fenced = me.session.main.fenced
    if fenced is not None:
        raise Fenced(str(fenced)) from error
    me.world.note(me.label, f"goes on after {type(error).__name__}: {error}")


def _work(me: ClientProcess, message: Message, habits: Habits) -> Operation[None]:
    """What an application does with a message: it takes time, or is the end of the process."""
    world = me.world
    world.watch.on_taken(me, message)
    if habits.crashing and not world.calm and world.random.random() < habits.crashing:
        world.after(0, lambda: _crash(me))
        yield Until(lambda: False)
    if habits.pace_ms and world.random.random() < 0.7:
        yield from me.sleep(world.random.randint(0, habits.pace_ms))


def _crash(me: ClientProcess) -> None:
    if me.alive:
        me.kill("crashes with messages in flight")
        me.client.come_back(me.world.random.randint(1, 1_500))


def _stays(me: ClientProcess, habits: Habits) -> bool:
    if done(me):
        return False
    return me.world.calm or not habits.leaving or me.world.random.random() >= habits.leaving


def looping(me: ClientProcess, member: Member, habits: Habits) -> Operation[None]:
    """`for message in subscription`: acked when the next one is asked for."""
    worker = working.Worker(me.core, member, POLL_S)
    try:
        while _stays(me, habits):
            try:
                piece = yield from worker.step()
            except (Unavailable, Overloaded, Fenced) as error:
                _bear(me, error)
                yield from me.sleep(me.world.random.randint(10, 200))
                continue
            for message in piece or ():
                yield from _work(me, message, habits)
                worker.done += 1
    finally:
        worker.leave()


def batching(me: ClientProcess, member: Member, habits: Habits) -> Operation[None]:
    """`for share in subscription.batches()`: acked together."""
    worker = working.Worker(me.core, member, POLL_S)
    try:
        while _stays(me, habits):
            try:
                share = yield from worker.step_batch()
            except (Unavailable, Overloaded, Fenced) as error:
                _bear(me, error)
                yield from me.sleep(me.world.random.randint(10, 200))
                continue
            if share is not None:
                for message in share:
                    yield from _work(me, message, habits)
                worker.done = len(share.values)
    finally:
        worker.leave()


def handling(me: ClientProcess, member: Member, habits: Habits) -> Operation[None]:
    """`bus.run()`: acked when the handler returns; when it raises, or the run ends, everything in flight goes back."""
    service = Service(me.core, {}, POLL_S, {(member.group, member.topic): []})
    while _stays(me, habits):
        try:
            found = yield from service.step()
        except (Unavailable, Overloaded, Fenced) as error:
            _bear(me, error)
            yield from me.sleep(me.world.random.randint(10, 200))
            continue
        if found is not None:
            yield from _work(me, found[0], habits)
            if habits.failing and not me.world.calm and me.world.random.random() < habits.failing:
                me.world.note(me.label, f"fails at {found[0].offset}")
                yield from service.leave()
    yield from service.leave()


def one_by_one(me: ClientProcess, member: Member, habits: Habits) -> Operation[None]:
    """`get`, then `ack`, `nack` or `extend`; several may be in flight at once."""
    random = me.world.random
    in_flight: list[Message] = []
    while _stays(me, habits):
        try:
            message = yield from working.get(me.core, member, me.core.deadline_ms(0.05 if in_flight else POLL_S))
        except (Unavailable, Overloaded, Fenced) as error:
            _bear(me, error)
            yield from me.sleep(random.randint(10, 200))
            continue
        if message is not None:
            yield from _work(me, message, habits)
            in_flight.append(message)
        if in_flight and (message is None or random.random() < 0.7):
            chosen = random.randrange(len(in_flight)) if random.random() < 0.2 else 0
            yield from _answer(me, member, in_flight.pop(chosen), habits)


def _answer(me: ClientProcess, member: Member, message: Message, habits: Habits) -> Operation[None]:
    random = me.world.random
    back = habits.failing and not me.world.calm and random.random() < habits.failing
    while True:
        try:
            if random.random() < 0.1:
                yield from working.extend(me.core, member, message)
            if back:
                me.world.note(me.label, f"gives {message.offset} back")
                yield from working.nack(me.core, member, message, random.choice((0.0, 0.0, 0.2, 0.5)))
            else:
                yield from working.ack(me.core, member, message)
                me.world.watch.on_confirmed(me, message)
        except (Unavailable, Overloaded) as error:
            _bear(me, error)
            yield from me.sleep(random.randint(10, 200))
        except Fenced as error:
            _bear(me, error)
            return
        else:
            return
