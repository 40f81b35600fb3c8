"""Reading any range of a topic's offsets, without a subscription and without changing anything.

Stored batches go out as they are. Anyone who asks keeps count of where it stands and asks for the next range, so the
broker remembers nothing about its readers.
"""

from __future__ import annotations

from tidings.errors import InvalidRequest
from tidings.message import check_topic
from tidings.protocols.broker.bulk import AskOffset, OffsetFound, Read, ReadDone, StoredBatch
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.topics import Place, Topic
from tidings.protocols.effects import Forward, Peer

READ_BODIES_MAX = 1024
"""Batches in one answer."""


def read(machine: Machine, peer: Peer, message: Read) -> Forward:
    """The answer to a reader: as many batches from its first offset on as its bounds and ours allow."""
    topic = machine.find_topic(check_topic(message.topic))
    _check_range(topic, message)
    batches: list[StoredBatch] = []
    places: list[Place] = []
    if message.first_offset < message.end_offset:
        bytes_room = min(message.size_bytes, machine.settings.read_bytes_max)
        end = min(message.end_offset, message.first_offset + message.messages)
        entry = topic.find(message.first_offset)
        while entry < len(topic.offsets) and len(places) < READ_BODIES_MAX:
            bytes_room -= topic.sizes[entry]
            first, following = topic.offsets[entry], topic.end_of(entry)
            if places and (bytes_room < 0 or first >= end):
                break
            batches.append(StoredBatch(first, following - first, topic.times[entry]))
            places.append(topic.place(entry))
            entry += 1
    done = ReadDone(message.request, topic.first_offset, topic.next_offset, tuple(batches))
    return Forward(peer, done, tuple(places), message.boot)


def _check_range(topic: Topic, message: Read) -> None:
    first, end = message.first_offset, message.end_offset
    if message.messages < 1 or message.size_bytes < 1:
        raise InvalidRequest("A reader asks for at least one message and one byte: raise the bounds.")
    if not topic.first_offset <= first <= end <= topic.next_offset:
        raise InvalidRequest(
            f"The offsets {first} to {end} of {topic.name!r} cannot be read: it holds {topic.first_offset} to "
            f"{topic.next_offset} (the first is what retention has left, the last is not taken yet)."
        )


def find_offset(machine: Machine, message: AskOffset) -> OffsetFound:
    """The first offset that was stored at or after a time."""
    topic = machine.find_topic(check_topic(message.topic))
    offset = topic.offset_at(message.time_ms)
    return OffsetFound(message.request, offset, topic.first_offset, topic.next_offset)
