"""Which messages may go, and which must be carried forward so that a segment can be removed.

Retention only decides; the decision is a journaled `Trim`, so that every replica forgets the same. What a
subscription still waits for never goes, nor does a topic's last message. A message's age is counted from when it was
stored, wherever it lies by now. Segments are removed whole: when the oldest one holds only little that is still kept,
that little is copied to the journal's end first.
"""

from __future__ import annotations

from typing import NamedTuple

from tidings.protocols.broker.commands import Carried, CarriedStage, Carry, Trim
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.messages import Position
from tidings.protocols.broker.topics import Place, Topic

CARRIED_SHARE_MAX = 0.25
"""A segment is emptied by copying when at most this share of it is still kept."""


TRIMMED_TOPICS_MAX = 1_000
"""So many topics lose messages by one command, those with the oldest first: the others soon after."""

RECORD_BYTES = 128
"""About what a batch takes in the journal beyond its body; without it, small messages would look like nothing."""


class Segment(NamedTuple):
    """A sealed segment of the journal: its addresses, and when its last record was written."""

    base_address: int
    end_address: int
    last_time_ms: int


def _active(machine: Machine) -> bool:
    settings = machine.settings
    sizes = (settings.retain_age_ms, settings.retain_bytes, settings.topic_idle_ms)
    return settings.drop_acknowledged or any(each is not None for each in sizes)


def trim_due(machine: Machine, now_ms: int, segments: list[Segment]) -> Trim | None:
    """The command that forgets what the settings say may go, None when that is nothing."""
    settings = machine.settings
    if not _active(machine):
        return None
    aged_address = aged_ms = 0
    if settings.retain_age_ms is not None:
        aged_ms = now_ms - settings.retain_age_ms
        aged_address = max((each.end_address for each in segments if each.last_time_ms < aged_ms), default=0)
    due: list[tuple[int, str, int]] = []
    for topic in machine.topics.values():
        if not machine.owns(topic.name):
            continue  # It is on its way between two groups, and stays as it is.
        offset = min(_droppable(machine, topic, aged_address, aged_ms), machine.owed_offset(topic))
        if topic.offsets and topic.end_of(0) <= offset:
            due.append((topic.times[0], topic.name, offset))
    oldest = sorted(due)[:TRIMMED_TOPICS_MAX]
    return Trim(tuple(Position(name, offset) for _, name, offset in oldest)) if oldest else None


def _droppable(machine: Machine, topic: Topic, aged_address: int, aged_ms: int) -> int:
    """The offset below which age, size or acknowledgement lets a topic's messages go.

    Of batches from before times were kept only the age of their segment is known.
    """
    settings = machine.settings
    offset = topic.first_offset
    if settings.drop_acknowledged and machine.readers.get(topic.name):
        offset = machine.owed_offset(topic)
    entry = 0
    excess_bytes = topic.size_bytes - settings.retain_bytes if settings.retain_bytes is not None else 0
    while entry < len(topic.offsets) and (
        excess_bytes > 0
        or (topic.times[entry] < aged_ms if topic.times[entry] else topic.addresses[entry] < aged_address)
    ):
        excess_bytes -= topic.sizes[entry]
        entry += 1
        offset = max(offset, topic.end_of(entry - 1))
    return offset


def lowest_address(machine: Machine, end_address: int) -> int:
    """Below this address the journal holds nothing that is still kept."""
    stored = min((topic.lowest_address for topic in machine.topics.values() if topic.offsets), default=end_address)
    staged = min((place.address for _, place in machine.stages.places()), default=end_address)
    return min(stored, staged)


def carry_due(machine: Machine, segments: list[Segment]) -> list[tuple[Carried | CarriedStage, Place]]:
    """What to copy forward so that the oldest segment can go; empty when it is not worth it yet.

    What topics hold comes first, then what is staged.
    """
    if not segments or not _active(machine):
        return []
    oldest = segments[0]
    found: list[tuple[Carried | CarriedStage, Place]] = []
    size_bytes = 0
    for topic in machine.topics.values():
        for entry, address in enumerate(topic.addresses):
            if address >= oldest.end_address:
                if topic.scattered:
                    continue
                break
            place = Place(address, topic.sizes[entry])
            found.append((Carried(topic.name, topic.offsets[entry], place.size_bytes), place))
            size_bytes += place.size_bytes + RECORD_BYTES
            if size_bytes > CARRIED_SHARE_MAX * (oldest.end_address - oldest.base_address):
                return []
    staged = [each for each in machine.stages.places() if each[1].address < oldest.end_address]
    size_bytes += sum(place.size_bytes + RECORD_BYTES for _, place in staged)
    if size_bytes > CARRIED_SHARE_MAX * (oldest.end_address - oldest.base_address):
        return []
    return found + staged


def carries_within(machine: Machine, start: int, end: int) -> list[Carry]:
    """What is kept between two addresses: a command to copy it for each batch."""
    stored = [
        Carry((Carried(topic.name, topic.offsets[entry], topic.sizes[entry]),))
        for topic in machine.topics.values()
        for entry in topic.entries_within(start, end)
    ]
    staged = [Carry((), (carried,)) for carried, place in machine.stages.places() if start <= place.address < end]
    return stored + staged


def carried_place(machine: Machine, carry: Carry) -> Place | None:
    """Where the one batch lies that such a command copies, also if it was made for another journal."""
    if len(carry.batches) == 1 and not carry.staged:
        [batch] = carry.batches
        topic = machine.topics.get(batch.topic)
        if topic is None or not topic.first_offset <= batch.first_offset < topic.next_offset:
            return None
        entry = topic.find(batch.first_offset)
        found = Place(topic.addresses[entry], topic.sizes[entry])
        is_same = topic.offsets[entry] == batch.first_offset and found.size_bytes == batch.size_bytes
        return found if is_same else None
    for wanted in carry.staged[: not carry.batches]:
        for each, place in machine.stages.places():
            if (each.stage, each.number, each.size_bytes) == (wanted.stage, wanted.number, wanted.size_bytes):
                return place
    return None
