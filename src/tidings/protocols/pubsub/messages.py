"""What the publish-subscribe layer is asked and tells, whatever is below it."""

from __future__ import annotations

import msgspec

from tidings.errors import ProtocolError
from tidings.protocols.stack import NodeId, Notification, Request

# Down.


class Subscribe(Request, frozen=True):
    """Deliver a topic here, from now on. Subscribing twice is subscribing once."""

    topic: str


class Unsubscribe(Request, frozen=True):
    topic: str


class Publish(Request, frozen=True):
    topic: str
    body: bytes


# Up.


class Arrived(Notification, frozen=True):
    """A message of a topic that this node subscribed to, once."""

    topic: str
    publisher: NodeId
    life: int
    """Since when the publisher runs: a new life numbers its messages again."""
    number: int
    body: bytes


class Lost(Notification, frozen=True):
    """Messages that this node should have had, and that nobody has any more."""

    stream: str
    """The topic, or where messages are not ordered by topic, their publisher."""
    count: int


class Rejected(Notification, frozen=True):
    """Messages of this node that could not be published."""

    topic: str
    reason: str


# Across, as the payload of the layer below.


class Letter(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message with its topic and its sender."""

    topic: str
    publisher: NodeId
    life: int
    number: int
    body: bytes


encode = msgspec.msgpack.encode
_decoder = msgspec.msgpack.Decoder(Letter)


def decode(payload: bytes) -> Letter:
    """The letter in a payload."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"A payload is no letter ({error}): do all nodes run the same version?") from None


def arrived(letter: Letter) -> Arrived:
    return Arrived(letter.topic, letter.publisher, letter.life, letter.number, letter.body)
