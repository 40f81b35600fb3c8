"""Every subscriber is handed each message once, in order, without a hole."""

from __future__ import annotations

from tidings.message import Message
from tidings.node.engine import AnyEngine
from tidings.protocols.broker import commands, messages
from tidings.protocols.broker.subscriptions import Subscription, SubscriptionKey, canonical
from tidings.simulator.checkers.checker import Checker, Process
from tidings.simulator.checkers.ledger import Existing, Ledger, name_of

Mode = str
"""loop: acknowledged after it was dealt with. get: acknowledged before it is handed out. inbox: written down when it is
handed out. transaction: handed out as often as it takes, and its answer exists once (another checker's business)."""

ACKNOWLEDGED_FIRST = ("get",)
NEVER_TWICE = ("get", "inbox")


class Part:
    """A part of a subscription: what comes before it in the whole, and what its topics held when it was made."""

    def __init__(self, topics: tuple[str, ...], whole: tuple[str, ...], held: dict[str, int], number: int = 0) -> None:
        self.earlier = whole[: whole.index(topics[0])]
        self.held = held
        self.number = number
        """It is told apart from an earlier one on the same topics by this."""

    def hands_out(self, topic: str, offset: int, topics: tuple[str, ...]) -> bool:
        """Whether a message that went to some topics comes through this one: through the first part that it went to,
        or through all if it was there before.
        """
        return offset < self.held[topic] or not any(other in self.earlier for other in topics)


class _Reading:
    """What the lives of one subscriber have been handed on one subscription."""

    def __init__(self, starts: dict[str, int], mode: Mode, life: int, epoch: int) -> None:
        self.starts = starts
        self.life = life
        """The life of the client in which the subscription was made."""
        self.epoch = epoch
        """The epoch in which that was done."""
        self.mode = mode
        self.lives: dict[str, int] = {}
        """message -> the first life that was handed it."""
        self.handed: dict[tuple[int, str], None] = {}
        """(life, message) for all that was handed out."""
        self.last: dict[tuple[int, str], int] = {}
        """(life, topic) -> the last offset that this life was handed."""
        self.asked: dict[str, int] = {}
        """topic -> how far acknowledgements that were sent would go."""
        self.floors: dict[int, dict[str, int]] = {}
        """life -> the cursors when that life began, if the subscription was there already."""
        self.parts: dict[str, Part] = {}
        """topic -> the part that it belongs to, if the topics may have several owners."""
        self.under_way: dict[str, None] = {}
        """Messages that some topics had, and others not yet, when a part was made: they may be from before it."""

    def comes_through(self, topic: str, offset: int, topics: tuple[str, ...]) -> bool:
        """Whether a message that went to some topics is to come through this one."""
        part = self.parts.get(topic)
        return part is None or part.hands_out(topic, offset, topics)


class EachOnceInOrder(Checker):
    RULE = "every subscriber is handed each message once and in order"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.modes: dict[SubscriptionKey, Mode] = {}
        """How each subscription is read; set by the workload."""
        self._readings: dict[SubscriptionKey, _Reading] = {}
        self._newest: dict[str, int] = {}
        self._lives: dict[tuple[str, int], int] = {}
        """(client, epoch) -> the life that has subscribed in it."""

    def on_existing(self, existing: Existing) -> None:
        command = existing.command
        if existing.error is not None:
            return
        if isinstance(command, commands.Subscribe):
            assert isinstance(existing.result, tuple)
            positions, created = existing.result
            if created:
                self._begin(command, {each.topic: each.offset for each in positions})
        elif isinstance(command, commands.Unsubscribe):
            key = (command.client, canonical(command.whole or command.topics))
            reading = self._readings[key]
            for topic in command.topics:
                del reading.starts[topic]
            if not reading.starts:
                del self._readings[key]

    def _begin(self, command: commands.Subscribe, starts: dict[str, int]) -> None:
        """A subscription was made, or a part of one."""
        key = (command.client, canonical(command.whole or command.topics))
        reading = self._readings.get(key)
        if reading is None or not command.whole:
            life = self._lives[command.client, command.epoch]
            reading = self._readings[key] = _Reading({}, self.modes[key], life, command.epoch)
        reading.starts |= starts
        if command.whole:
            held = {topic: len(self.ledger.topics.get(topic, ())) for topic in command.topics}
            known = [part.number for topic, part in reading.parts.items() if topic in starts]
            part = Part(command.topics, command.whole, held, max(known, default=0) + 1)
            reading.parts |= dict.fromkeys(command.topics, part)
            reading.last = {place: last for place, last in reading.last.items() if place[1] not in starts}
            for (
                floors
            ) in reading.floors.values():  # The part that was there when a life began may have been ended since.
                for topic in starts:
                    floors.pop(topic, None)
            under_way = (name for name in self.ledger.intended if self._is_under_way(name, command.whole))
            reading.under_way |= dict.fromkeys(under_way)

    def _is_under_way(self, name: str, topics: tuple[str, ...]) -> bool:
        meant = [topic for topic in self.ledger.intended[name] if topic in topics]
        stored = [name in self.ledger.topics.get(topic, ()) for topic in meant]
        return any(stored) and not all(stored)

    def _parts(self, key: SubscriptionKey) -> list[Subscription]:
        """What there is of a subscription: all of it, as long as its topics have one owner."""
        found = self.ledger.reference.subscriptions.get(key)
        return [] if found is None else [found]

    def _cursors(self, key: SubscriptionKey) -> dict[str, int]:
        return {topic: offset for part in self._parts(key) for topic, offset in part.cursors.items()}

    def on_process(self, process: Process) -> None:
        self._newest[process.name] = process.life
        for key, reading in self._readings.items():
            if key[0] == process.name:
                reading.floors[process.life] = self._cursors(key)

    def on_request(self, process: Process, request: messages.AnyRequest) -> None:
        if isinstance(request, messages.Subscribe):
            self._lives[process.name, request.epoch] = process.life
        elif isinstance(request, messages.Ack):
            reading = self._readings.get((process.name, canonical(request.acknowledgement.topics)))
            if reading is not None:
                for position in request.acknowledgement.positions:
                    reading.asked[position.topic] = max(reading.asked.get(position.topic, 0), position.offset)

    def on_handed(self, process: Process, topics: tuple[str, ...], message: Message) -> None:
        key = (process.name, topics)
        reading = self._readings.get(key)
        if reading is not None and message.topic not in reading.starts:
            reading = None
        name, topic, offset = name_of(message.value), message.topic, message.offset
        where = f"{process.label} was handed {name} at {topic} {offset}"
        if not self.ledger.holds(topic, offset, name):
            self.broken(f"{where}, and that is not durable")
        if self._is_older(process, reading):
            return  # An older life, from before a newer one subscribed again: what it still holds is its own affair.
        if reading is None:
            self.broken(f"{where} without a subscription to {topics}")
        if offset < reading.starts[topic]:
            self.broken(f"{where}, and its subscription starts at {reading.starts[topic]}")
        if reading.mode == "transaction":  # It may be taken back and come again.
            reading.lives.setdefault(name, process.life)
            return
        previous = reading.last.get((process.life, topic))
        if previous is not None and offset <= previous:
            self.broken(f"{where} after offset {previous}")
        self._check_hole(where, reading, process, topic, offset)
        self._check_repetition(where, reading, process.life, message)
        reading.last[process.life, topic] = offset

    def _is_older(self, process: Process, reading: _Reading | None) -> bool:
        """Whether a life is from before the subscription; but one that began earlier may have got its epoch later."""
        if reading is None:
            return process.life < self._newest[process.name]
        epochs = (epoch for (name, epoch), life in self._lives.items() if (name, life) == (process.name, process.life))
        return process.life < reading.life and max(epochs, default=0) <= reading.epoch

    def _check_hole(self, where: str, reading: _Reading, process: Process, topic: str, offset: int) -> None:
        """Everything between the last one and this one was handed out before, or need not be."""
        previous = reading.last.get((process.life, topic))
        begin = reading.starts[topic] if previous is None else previous + 1
        for skipped in range(begin, offset):
            name = self.ledger.topics[topic][skipped]
            if name in reading.lives or (previous is None and self._acked_in_get(reading, topic, skipped)):
                continue
            # What also went to another topic of the subscription may come through that one, sooner or later.
            if not any(other != topic and other in reading.starts for other in self.ledger.intended[name]):
                self.broken(f"{where}, and {name} at {skipped} was skipped")

    def _acked_in_get(self, reading: _Reading, topic: str, offset: int) -> bool:
        """`get` acknowledges first: a process that died between that and the hand-out takes the message with it."""
        return reading.mode in ACKNOWLEDGED_FIRST and offset < reading.asked.get(topic, 0)

    def _check_repetition(self, where: str, reading: _Reading, life: int, message: Message) -> None:
        floor = reading.floors.get(life, {}).get(message.topic, 0)
        if message.offset < floor:
            self.broken(f"{where}, and the cursor was at {floor} before that process began")
        name = self._once_for(reading, message.topic, message.offset, name_of(message.value))
        if (life, name) in reading.handed:
            self.broken(f"{where}, and it had that through another topic already")
        reading.handed[life, name] = None
        reading.lives.setdefault(name_of(message.value), life)
        first = reading.lives.setdefault(name, life)
        if life != first and reading.mode in NEVER_TWICE:
            self.broken(f"{where}, which life {first} had been handed already")
        if life < first:  # An older life comes later; what the newer one was given was the repetition.
            reading.lives[name] = life
        elif life > first and not message.redelivered:
            self.broken(f"{where} without a word that life {first} had been handed it")

    def _once_for(self, reading: _Reading, topic: str, offset: int, name: str) -> str:
        """What may be handed out once: a message, and one that was there before a part for each topic that had it."""
        for other in self.ledger.intended.get(name, ()) if reading.parts else ():
            stored, part = self.ledger.topics.get(other, []), reading.parts.get(other)
            if part is not None and name in stored and stored.index(name) < part.held[other]:
                return f"{name} of {topic} {reading.parts[topic].number}"
        return name

    def missing(self, key: SubscriptionKey) -> list[str]:
        """What a subscriber has still to be handed."""
        reading, cursors = self._readings.get(key), self._cursors(key)
        if reading is None or not cursors:
            return []
        return self._not_handed(reading, cursors)

    def _not_handed(self, reading: _Reading, acknowledged: dict[str, int]) -> list[str]:
        """Of all that is meant for a subscriber, what it was not handed and what is not lost with a process."""
        excused: dict[str, None] = {}
        wanted: dict[str, None] = {}
        for topic, start in reading.starts.items():
            names = self.ledger.topics.get(topic, [])
            if reading.mode == "transaction":
                for offset in range(acknowledged.get(topic, start), len(names)):
                    if reading.comes_through(topic, offset, self.ledger.intended.get(names[offset], ())):
                        wanted[names[offset]] = None
            else:
                wanted.update(dict.fromkeys(names[start:]))
            if reading.mode in ACKNOWLEDGED_FIRST:
                excused.update(dict.fromkeys(names[: acknowledged.get(topic, 0)]))
        if reading.mode == "transaction":  # Handed out is not enough there: what is taken back comes again.
            return list(wanted)
        excused |= reading.under_way
        return [name for name in wanted if name not in reading.lives and name not in excused]

    def on_end(self, engine: AnyEngine) -> None:
        for key, reading in self._readings.items():
            cursors = self._cursors(key)
            missing = self._not_handed(reading, cursors if reading.mode == "transaction" else reading.asked)
            if missing:
                self.broken(f"{key} was never handed {missing}")
