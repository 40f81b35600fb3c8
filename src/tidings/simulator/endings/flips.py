"""Bits that flip in the files of a member that leads and serves, between two reads of one life.

Everything has been read once, as ranges and by a subscription, when a bit of a stored message flips on the leader's
disk. Anyone who reads it then gets it as it was: the leader fetches it from another member, and readers wait that long.
What has just been checked counts as good until the next tick (`journal/checked.py`), so that comes first. Only what
lies in sealed segments is hit, and what every other member has: more than that a group does not promise.
"""

from __future__ import annotations

from functools import partial
from random import Random

from tidings.client import operations
from tidings.client.operations import Operation
from tidings.client.ranges import RangeReader
from tidings.errors import InvalidRequest, NoSuchTopic, ProtocolError, StorageDamaged, Unavailable
from tidings.journal.segment import journal_name
from tidings.node.engine import TICK_MS
from tidings.protocols.multipaxos.messages import FetchCopy
from tidings.simulator.clients.client import Client, ClientProcess
from tidings.simulator.clients.publishers import insist
from tidings.simulator.clients.subscribers import looping
from tidings.simulator.world.node import NodeProcess
from tidings.simulator.world.world import World

RULE = "what is damaged on one member comes from another, as it was"
READER = "vic"


class Flips:
    """What happens to the files of leaders at the end of a run, and who reads them."""

    def __init__(self, world: World, group: str, choices: tuple[int, ...]) -> None:
        """`choices`: which bits."""
        self._world = world
        self._group = group
        self._choices = choices
        self._readers = 0

    def run(self) -> None:
        """Everything is read, then a bit flips, then everything is read again; and so on.

        What was read from memory all the time nobody has missed then, so the disks are scrubbed before the next one.
        """
        world = self._world
        for choice in (None, *self._choices):
            if choice is None or self.flip(choice):
                reader = self._new_reader()
                reader.start()
                world.pass_or_break(lambda reader=reader: reader.finished, "anyone who reads everything")  # type: ignore[misc]
                for node in world.nodes:
                    node.scrub_all()
                world.pass_or_break(lambda: all(map(is_readable, world.nodes)), "fetching what is damaged")
        world.check_nodes("every node after bits had flipped")

    def _new_reader(self) -> Client:
        """A client that reads everything that there is, each topic as a range and by a subscription."""
        world = self._world
        self._readers += 1
        name = f"{READER}{self._readers}"
        topics = [topic for topic, names in world.watch.ledger.topics.items() if names]
        world.watch.once.modes.update({(name, (topic,)): "loop" for topic in topics})
        world.clients[name] = Client(world, name, [partial(self._read, topics=topics)], None)
        return world.clients[name]

    def _read(self, me: ClientProcess, topics: list[str]) -> Operation[None]:
        yield from me.sleep(2 * TICK_MS)
        try:
            for topic in topics:
                yield from self._read_range(me, topic)
                yield from looping(me, (topic,), "earliest", 0)
        except (StorageDamaged, ProtocolError) as error:
            me.world.watch.violate(RULE, f"{me.label} reads from a group of several, and that ends in {error!r}")

    def _read_range(self, me: ClientProcess, topic: str) -> Operation[None]:
        at = 0
        while True:
            infos = yield from insist(me, lambda: operations.topics(me.core))
            info = next((each for each in infos if each.name == topic), None)
            if info is None or max(at, info.first_offset) >= info.next_offset:
                return  # All is read; or nobody used it, and it has gone.
            at = max(at, info.first_offset)
            reader = RangeReader(me.core, topic, at, info.next_offset)
            try:
                yield from reader.begin()
                while (batch := (yield from reader.step())) is not None:
                    me.world.watch.on_read(me, batch)
                    at = batch.next_offset
            except (Unavailable, InvalidRequest, NoSuchTopic) as error:  # Retention may have been faster.
                me.world.note(me.label, f"goes on after {error}")
            finally:
                reader.leave()

    def flip(self, choice: int) -> bool:
        """A bit of a stored message flips on the disk of the leader; whether there is one to hit."""
        node = next((each for each in self._world.serving if each.group == self._group), None)
        if node is None or node.engine is None:
            return False
        random, journal = Random(choice), node.engine.journal
        places = self._hittable(node)
        if not places:
            return False
        address, size_bytes = random.choice(places)
        hit = address + random.randrange(size_bytes)
        segment = next(each for each in journal.segments if each.base_address <= hit < each.end_address)
        name, position = journal_name(segment.first_slot), hit - segment.base_address
        self._world.note(node.name, f"a bit of byte {position} of {name} flips")
        node.disk.flip_bit(name, position, random.randrange(8))
        return True

    def _hittable(self, node: NodeProcess) -> list[tuple[int, int]]:
        """Where stored batches lie in sealed segments that all other members have too, wherever they have them."""
        assert node.engine is not None
        others = [each for each in self._world.groups[self._group] if each is not node]
        return [
            (place.address, place.size_bytes)
            for topic in node.engine.broker.machine.topics.values()
            for entry, place in enumerate(map(topic.place, range(len(topic.offsets))))
            if place.size_bytes
            and place.address < node.engine.journal.segment_address
            and all(_has_whole(other, topic.name, topic.offsets[entry]) for other in others)
        ]


def _has_whole(node: NodeProcess, topic: str, first_offset: int) -> bool:
    """Whether a member could send a batch to others."""
    found = node.engine.broker.machine.topics.get(topic) if node.engine is not None else None
    if node.engine is None or found is None or not found.first_offset <= first_offset < found.next_offset:
        return False
    place = found.place(found.find(first_offset))
    try:
        node.engine.journal.read(place.address, place.size_bytes)
    except StorageDamaged:
        return False
    return True


def is_readable(node: NodeProcess) -> bool:
    """Whether no message of a member lies where its disk is known to be damaged, and what has come is on the disk."""
    if node.log is None:  # A sync that was still to fail has failed now.
        return False
    replica = node.log.replica
    if replica.has_staged or replica.committing:
        return False
    return not any(isinstance(each, FetchCopy) for each in replica.repairs.left(replica.state))
