"""The broker's whole state as bytes, and back.

A snapshot holds everything but the indexes of topics and tracks, which lie in pieces beside the journal's segments:
each piece says what they gained while its segment was written.
"""

from __future__ import annotations

import msgspec

from tidings.errors import StorageDamaged
from tidings.protocols.broker.clients import Client, Track, TrackIndex
from tidings.protocols.broker.consumer_groups.groups import GroupState
from tidings.protocols.broker.ownership import NOTHING
from tidings.protocols.broker.staged import StagesState
from tidings.protocols.broker.state import State
from tidings.protocols.broker.subscriptions import Subscription
from tidings.protocols.broker.topics import Topic, TopicIndex
from tidings.protocols.fields import Noted

SNAPSHOT_VERSION = 3
"""1 had no stages and 2 knew of no ring; such snapshots are read as those of a broker that has neither."""


class TopicState(msgspec.Struct, frozen=True, array_like=True):
    name: str
    first_offset: int
    next_offset: int
    ids: list[tuple[int, str, int]]
    acked_offset: int = 0
    used_at_ms: int = 0
    max_backlog: int | None = None
    fully_acked_offset: int = 0


class ClientState(msgspec.Struct, frozen=True, array_like=True):
    name: str
    token: bytes
    anonymous: bool
    epoch: int
    lasts: dict[str, int]
    past_tokens: list[bytes]
    noted: Noted | None = None
    """Older snapshots do not say which groups have been noted: all are told."""
    is_noted: bool = False


class SnapshotVersion(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of every snapshot, whatever follows it."""

    version: int


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """All of the state but the indexes, which lie beside the segments that they describe."""

    version: int
    topics: list[TopicState]
    clients: list[ClientState]
    subscriptions: list[Subscription]
    groups: list[GroupState] = []
    retired: dict[str, int] = {}
    stages: StagesState = StagesState()
    ownership: msgspec.Raw = msgspec.Raw(NOTHING)
    """What the ownership policy has to remember."""


class SegmentIndex(msgspec.Struct, frozen=True, array_like=True):
    """What all indexes gained while one journal segment was written."""

    topics: list[TopicIndex]
    tracks: list[TrackIndex]


def seal(machine: State, stages: StagesState, ownership: bytes) -> tuple[bytes, bytes]:
    """What the indexes gained since the last seal, and all other state, each as bytes."""
    pieces = [piece for topic in machine.topics.values() if (piece := topic.seal()) is not None]
    runs = [run for client in machine.clients.values() for run in client.seal()]
    snapshot = Snapshot(
        SNAPSHOT_VERSION,
        [
            TopicState(
                topic.name,
                topic.first_offset,
                topic.next_offset,
                [(at_ms, name, topic.ids[name]) for at_ms, name in topic.id_times],
                topic.acked_offset,
                machine.used_at_ms.get(topic.name, 0),
                topic.max_backlog,
                topic.fully_acked_offset,
            )
            for topic in machine.topics.values()
        ],
        [
            ClientState(
                client.name,
                client.token,
                client.anonymous,
                client.epoch,
                {name: track.last for name, track in client.tracks.items()},
                list(client.past_tokens),
                client.noted,
                client.is_noted,
            )
            for client in machine.clients.values()
        ],
        list(machine.subscriptions.values()),
        [group.state() for group in machine.groups.values()],
        machine.retired,
        stages,
        msgspec.Raw(ownership),
    )
    return msgspec.msgpack.encode(SegmentIndex(pieces, runs)), msgspec.msgpack.encode(snapshot)


def restore(machine: State, snapshot: bytes | memoryview, indexes: list[bytes]) -> Snapshot:
    """Fills the tables from a snapshot and the index pieces of all segments before it; stages and the ownership, which
    are in none of them, are for the caller to take from what is returned.
    """
    version = msgspec.msgpack.decode(snapshot, type=SnapshotVersion).version
    if not 1 <= version <= SNAPSHOT_VERSION:
        raise StorageDamaged(
            f"The snapshot has format version {version}, and this release reads {SNAPSHOT_VERSION}: "
            "use a newer tidings."
        )
    state = msgspec.msgpack.decode(snapshot, type=Snapshot)
    _restore_tables(machine, state)
    for data in indexes:
        piece = msgspec.msgpack.decode(data, type=SegmentIndex)
        for topic_piece in piece.topics:
            if topic_piece.topic in machine.topics:
                machine.topics[topic_piece.topic].load(topic_piece)
        for run in piece.tracks:
            if run.client in machine.clients and run.topic in machine.clients[run.client].tracks:
                machine.clients[run.client].tracks[run.topic].load(run)
    for loaded in machine.topics.values():
        loaded.finish_loading()
    for client in machine.clients.values():
        for name, track in client.tracks.items():
            track.trim(machine.topics[name].first_offset if name in machine.topics else machine.retired.get(name, 0))
    return state


def _restore_tables(machine: State, state: Snapshot) -> None:
    """Everything but the indexes."""
    for topic in state.topics:
        kept = machine.topics[topic.name] = Topic(topic.name, topic.first_offset, topic.next_offset)
        kept.acked_offset, kept.fully_acked_offset = topic.acked_offset, topic.fully_acked_offset
        kept.max_backlog = topic.max_backlog
        machine.used_at_ms[topic.name] = topic.used_at_ms
        for at_ms, name, offset in topic.ids:
            kept.remember_ids([(name, offset)], at_ms)
    for known in state.clients:
        client = machine.clients[known.name] = Client(known.name, known.token, known.anonymous, known.epoch)
        client.past_tokens.extend(known.past_tokens)
        client.noted, client.is_noted = known.noted, known.is_noted
        client.tracks = {name: Track(last) for name, last in known.lasts.items()}
    for subscription in state.subscriptions:
        machine.remember_subscription(subscription)
    machine.retired = dict(state.retired)
    for group in state.groups:
        machine.remember_group(group.restore())
