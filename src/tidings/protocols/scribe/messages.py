"""What Scribe says: across to its peers, up and down its stack, and to itself later."""

from __future__ import annotations

import msgspec

from tidings.errors import ProtocolError
from tidings.protocols.stack import Message, NodeId, Notification, Request, Timer

NOW = -1
"""Start with whatever is published next."""

# Down.


class Subscribe(Request, frozen=True):
    """Deliver a topic here, from an offset on, or from now on."""

    topic: str
    start: int = NOW


class Unsubscribe(Request, frozen=True):
    topic: str


class Publish(Request, frozen=True):
    topic: str
    payload: bytes


# Up.


class MessageDelivered(Notification, frozen=True):
    """The next message of a topic that this node subscribed to."""

    topic: str
    offset: int
    payload: bytes


class MessagesMissed(Notification, frozen=True):
    """The root no longer keeps the messages from `first_offset` up to `end_offset`, and this node did not get them."""

    topic: str
    first_offset: int
    end_offset: int


class Published(Notification, frozen=True):
    """The root, and every copy of its log, has this node's messages up to (not with) a sequence number."""

    topic: str
    sequence_end: int


class PublishRefused(Notification, frozen=True):
    """The root does not take this node's messages: what had not been taken is dropped."""

    topic: str
    reason: str


# Across, by Chord's routes.


class JoinTree(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The node that made the last step wants to be a child in the tree of a topic."""

    topic: str


class Submit(Message, frozen=True):
    """Messages of one publisher, for the root to order. Also sent directly once the root is known."""

    topic: str
    publisher: NodeId
    life: int
    """Since when the publisher runs: a new life numbers its messages again."""
    first_sequence: int
    payloads: tuple[bytes, ...]


class Fetch(Message, frozen=True):
    """A subscriber asks the root for messages from an offset on, or (NOW) only for the end."""

    topic: str
    reader: NodeId
    first_offset: int


# Across, directly: the tree.


class Grafted(Message, frozen=True):
    """You are my child now."""

    topic: str
    root: NodeId | None
    end: int
    """The offset after the last message, as far as the sender knows."""


class Pruned(Message, frozen=True):
    """I am not your child any more."""

    topic: str


class Orphaned(Message, frozen=True):
    """I am not your parent any more."""

    topic: str


class TreeBeat(Message, frozen=True):
    """I am your parent in these trees: (topic, root, end)."""

    trees: tuple[tuple[str, NodeId | None, int], ...]


class TreeBeatTaken(Message, frozen=True):
    """You are my parent in these trees."""

    topics: tuple[str, ...]


class Spread(Message, frozen=True):
    """Messages on their way down the tree."""

    topic: str
    root: NodeId
    first_offset: int
    payloads: tuple[bytes, ...]


# Across, directly: the root and its publishers and readers.


class Accepted(Message, frozen=True):
    """The root has everything of a publisher up to a sequence number."""

    topic: str
    life: int
    sequence_end: int


class Refused(Message, frozen=True):
    topic: str
    life: int
    reason: str


class Fetched(Message, frozen=True):
    topic: str
    first_offset: int
    payloads: tuple[bytes, ...]
    end: int


class NotRoot(Message, frozen=True):
    """Somebody else is the root: find it by a route."""

    topic: str


# Across, directly: the root and its copies.


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message in the log of a topic."""

    epoch: int
    """In whose reign it was given its offset."""
    publisher: NodeId
    life: int
    sequence: int
    payload: bytes


class Replicate(Message, frozen=True):
    """Keep a copy of these entries, if what you have before them is the same as mine."""

    topic: str
    epoch: int
    first_offset: int
    previous_epoch: int
    """The epoch of the entry before the first: equal epochs mean equal logs up to there."""
    entries: tuple[Entry, ...]
    committed: int
    base: int
    """The first offset that the root still keeps."""
    publishers: tuple[tuple[str, int], ...] = ()
    """The sequence numbers before `base`, for a copy that begins there."""


class Replicated(Message, frozen=True):
    topic: str
    epoch: int
    is_kept: bool
    end: int
    """Up to where the copy is the same, or from where it needs more."""


class Inherit(Message, frozen=True):
    """I want to reign in an epoch: obey no earlier one from now on, and say what you have kept."""

    topic: str
    epoch: int


class Legacy(Message, frozen=True):
    topic: str
    epoch: int
    """The latest epoch that the sender obeys: a later one than that of the question is a refusal."""
    last_epoch: int
    end: int


class Pull(Message, frozen=True):
    topic: str
    first_offset: int


class Pulled(Message, frozen=True):
    topic: str
    epoch: int
    """The latest epoch that the sender obeys."""
    first_offset: int
    previous_epoch: int
    entries: tuple[Entry, ...]
    end: int
    publishers: tuple[tuple[str, int], ...]
    """The sequence numbers before `first_offset`, if the copy begins there."""


# Later.


class TreesDue(Timer, frozen=True):
    pass


Routed = JoinTree | Submit | Fetch
"""What travels inside of Chord's payloads."""

_decoder: msgspec.msgpack.Decoder[Routed] = msgspec.msgpack.Decoder(Routed)
encode = msgspec.msgpack.encode


def decode(payload: bytes) -> Routed:
    """Reads a routed payload."""
    try:
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(
            f"A routed payload is not one of Scribe's: {error}. Do both sides run the same version?"
        ) from None
