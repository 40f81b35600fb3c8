"""What Scribe says: across to its peers, up and down its stack, and to itself later."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tidings.errors import ProtocolError
from tidings.protocols.fields import NUMBER_MAX, Name, Number, Several
from tidings.protocols.stack import Message, NodeId, Notification, Request, Timer

NOW = -1
"""Start with whatever is published next."""
NumberOrNow = Annotated[int, Meta(ge=NOW, le=NUMBER_MAX)]

# Down.


class Subscribe(Request, frozen=True):
    """Deliver a topic here, from an offset on, or from now on."""

    topic: str
    start: int = NOW


class Unsubscribe(Request, frozen=True):
    topic: str


class Publish(Request, frozen=True):
    """Submits a payload to the root of each of these topics; what is refused at once is refused for all of them."""

    topic: str
    payload: bytes
    also: tuple[str, ...] = ()


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

    topic: Name


class Submit(Message, frozen=True):
    """Messages of one publisher, for the root to order. Also sent directly once the root is known."""

    topic: Name
    publisher: NodeId
    life: Number
    """Since when the publisher runs: a new life numbers its messages again."""
    first_sequence: Number
    payloads: Several[bytes]


class Fetch(Message, frozen=True):
    """A subscriber asks the root for messages from an offset on, or (NOW) only for the end."""

    topic: Name
    reader: NodeId
    first_offset: NumberOrNow


# Across, directly: the tree.


class Grafted(Message, frozen=True):
    """You are my child now."""

    topic: Name
    root: NodeId | None
    end: Number
    """The offset after the last message, as far as the sender knows."""


class Pruned(Message, frozen=True):
    """I am not your child any more."""

    topic: Name


class Orphaned(Message, frozen=True):
    """I am not your parent any more."""

    topic: Name


class TreeBeat(Message, frozen=True):
    """I am your parent in these trees: (topic, root, end)."""

    trees: Several[tuple[Name, NodeId | None, Number]]


class TreeBeatTaken(Message, frozen=True):
    """You are my parent in these trees."""

    topics: Several[Name]


class Spread(Message, frozen=True):
    """Messages on their way down the tree."""

    topic: Name
    root: NodeId
    first_offset: Number
    payloads: Several[bytes]


# Across, directly: the root and its publishers and readers.


class Accepted(Message, frozen=True):
    """The root has everything of a publisher up to a sequence number."""

    topic: Name
    life: Number
    sequence_end: Number


class Refused(Message, frozen=True):
    topic: Name
    life: Number
    reason: Name


class Fetched(Message, frozen=True):
    topic: Name
    first_offset: Number
    payloads: Several[bytes]
    end: Number


class NotRoot(Message, frozen=True):
    """Somebody else is the root: find it by a route."""

    topic: Name


# Across, directly: the root and its copies.


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message in the log of a topic."""

    epoch: Number
    """In whose reign it was given its offset."""
    publisher: NodeId
    life: Number
    sequence: Number
    payload: bytes


class Replicate(Message, frozen=True):
    """Keep a copy of these entries, if what you have before them is the same as mine."""

    topic: Name
    epoch: Number
    first_offset: Number
    previous_epoch: Number
    """The epoch of the entry before the first: equal epochs mean equal logs up to there."""
    entries: Several[Entry]
    committed: Number
    base: Number
    """The first offset that the root still keeps."""
    publishers: Several[tuple[Name, Number]] = ()
    """The sequence numbers before `base`, for a copy that begins there."""


class Replicated(Message, frozen=True):
    topic: Name
    epoch: Number
    is_kept: bool
    end: Number
    """Up to where the copy is the same, or from where it needs more."""


class Inherit(Message, frozen=True):
    """I want to reign in an epoch: obey no earlier one from now on, and say what you have kept."""

    topic: Name
    epoch: Number


class Legacy(Message, frozen=True):
    topic: Name
    epoch: Number
    """The latest epoch that the sender obeys: a later one than that of the question is a refusal."""
    last_epoch: Number
    end: Number


class Pull(Message, frozen=True):
    topic: Name
    first_offset: Number


class Pulled(Message, frozen=True):
    topic: Name
    epoch: Number
    """The latest epoch that the sender obeys."""
    first_offset: Number
    previous_epoch: Number
    entries: Several[Entry]
    end: Number
    publishers: Several[tuple[Name, Number]]
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
