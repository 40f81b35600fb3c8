"""What the publish-subscribe layer is asked and tells, whatever is below it."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidings.errors import InvalidRequest, LimitReached, ProtocolError
from tidings.message import check_topic
from tidings.protocols.fields import Name, Number
from tidings.protocols.stack import NodeId, Notification, Request

TOPICS_MAX = 64
"""Of one message."""

# Down.


class Subscribe(Request, frozen=True):
    """Deliver a topic here, from now on. Subscribing twice is subscribing once."""

    topic: str


class Unsubscribe(Request, frozen=True):
    topic: str


class Publish(Request, frozen=True):
    """Brings a message to the subscribers of a topic, or of several: each of them gets it once."""

    topic: str
    body: bytes
    also: tuple[str, ...] = ()
    """More topics."""


# Up.


class Arrived(Notification, frozen=True):
    """A message of a topic that this node subscribed to, once."""

    topic: str
    publisher: NodeId
    life: int
    """Since when the publisher runs: a new life numbers its messages again."""
    number: int
    body: bytes
    also: tuple[str, ...] = ()
    """The other topics that it was published to."""


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

    topic: Name
    publisher: NodeId
    life: Number
    number: Number
    body: bytes
    also: Annotated[tuple[Name, ...], msgspec.Meta(max_length=TOPICS_MAX - 1)] = ()
    """More topics. A node of an older version takes the message for one to `topic` alone."""


encode = msgspec.msgpack.encode
_decoder = msgspec.msgpack.Decoder(Letter)


def decode(payload: bytes) -> Letter:
    """The letter in a payload."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"A payload could not be read ({error}): do all nodes run the same version?") from None


def check_topics(request: Publish) -> tuple[str, ...]:
    """All topics of a message, or what is wrong with one of them."""
    topics = (request.topic, *request.also)
    for topic in topics:
        check_topic(topic)
    if len(set(topics)) < len(topics):
        raise InvalidRequest("A topic is named twice in one message: name each once.")
    if len(topics) > TOPICS_MAX:
        raise LimitReached(f"A message goes to at most {TOPICS_MAX} topics, not {len(topics)}: publish it twice.")
    return topics


def arrived(letter: Letter, topic: str) -> Arrived:
    """That a message has come to a subscriber of this one of its topics."""
    others = tuple(each for each in (letter.topic, *letter.also) if each != topic)
    return Arrived(topic, letter.publisher, letter.life, letter.number, letter.body, others)
