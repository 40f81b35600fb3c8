"""A count of what the nodes of a ring send each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from tidings.protocols.ring.handoff_messages import HandoffMessage
from tidings.protocols.ring.messages import (
    AskEpoch,
    AskWord,
    Back,
    Between,
    Bodies,
    FetchBodies,
    Find,
    HomeEpoch,
    Interest,
    NotOwner,
    Relay,
    Shown,
    Word,
)
from tidings.protocols.stack import Message
from tidings.wire.replication import MARK as REPLICA_MARK
from tidings.wire.replication import decode_message
from tidings.wire.ring import decode_header

LAYERS: dict[type, str] = {
    **dict.fromkeys((Relay, Back, NotOwner, AskEpoch, HomeEpoch), "relay"),
    **dict.fromkeys((Shown, Bodies, FetchBodies, Interest), "bodies"),
    **dict.fromkeys((Word, AskWord, Find), "finding"),
}
"""What messages between the nodes of a ring are for: carrying what clients say and hear, bodies for several readers at
once, and finding owners. Those between virtual nodes are counted by the layers of the overlay.
"""
OVERLAY = ("chord", "scribe", "gossip", "hyparview", "heartbeat", "pubsub")


class Census:
    """Messages between nodes, by what they are for and by their kind."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.sizes: Counter[tuple[str, str]] = Counter()
        self._overlay = {kind.__name__: layer for kind in _kinds(Message) if (layer := _layer_of(kind)) in OVERLAY}

    def count(self, frames: Sequence[bytes]) -> None:
        kind = self._kind_of(frames)
        self.counts[kind] += 1
        self.sizes[kind] += sum(map(len, frames))

    def _kind_of(self, frames: Sequence[bytes]) -> tuple[str, str]:
        if frames[0] == REPLICA_MARK:
            return "paxos", type(decode_message(frames).message).__name__
        message = decode_header(frames).message
        if isinstance(message, Between):
            name = str(msgspec.msgpack.decode(message.message)[0])
            return self._overlay[name], name
        if isinstance(message, HandoffMessage):
            return "hand-over", type(message).__name__
        return LAYERS[type(message)], type(message).__name__


def _kinds(kind: type) -> list[type]:
    below: list[type] = kind.__subclasses__()
    return [kind, *(each for one in below for each in _kinds(one))]


def _layer_of(kind: type) -> str:
    """The protocol whose message it is: tidings.protocols.chord.messages is chord's."""
    return kind.__module__.removeprefix("tidings.protocols.").partition(".")[0]
