"""Publish-subscribe over Scribe: topics have an owner, who orders their messages and knows which are missing.

Scribe does nearly all of it. This layer gives every message the name of its publisher, and the application the same
words as over gossip.
"""

from __future__ import annotations

from tidings.errors import ProtocolError
from tidings.message import check_topic
from tidings.protocols import scribe
from tidings.protocols.pubsub.messages import (
    Letter,
    Lost,
    Publish,
    Rejected,
    Subscribe,
    Unsubscribe,
    arrived,
    decode,
    encode,
)
from tidings.protocols.stack import (
    Ask,
    Effect,
    Event,
    NodeId,
    Notified,
    Notify,
    Requested,
    UnexpectedEvent,
)


class OverScribe:
    """The publish-subscribe layer of one node of a ring."""

    handles = (Subscribe, Unsubscribe, Publish)
    listens = (scribe.MessageDelivered, scribe.MessagesMissed, scribe.PublishRefused)

    def __init__(self, node: NodeId) -> None:
        self._node = node
        self._life = 0
        self._number = 0

    def start(self, now_ms: int) -> list[Effect]:
        self._life = now_ms
        return []

    def handle(self, event: Event) -> list[Effect]:
        match event:
            case Notified(_, scribe.MessageDelivered(topic, _, payload)):
                return self._on_delivered(topic, payload)
            case Requested(_, Publish(topic, body)):
                return self._on_publish(topic, body)
            case Requested(_, Subscribe(topic)):
                return [Ask(scribe.Subscribe(check_topic(topic)))]
            case Requested(_, Unsubscribe(topic)):
                return [Ask(scribe.Unsubscribe(topic))]
            case Notified(_, scribe.MessagesMissed(topic, first_offset, end_offset)):
                return [Notify(Lost(topic, end_offset - first_offset))]
            case Notified(_, scribe.PublishRefused(topic, reason)):
                return [Notify(Rejected(topic, reason))]
        raise UnexpectedEvent(event)

    def _on_publish(self, topic: str, body: bytes) -> list[Effect]:
        letter = Letter(check_topic(topic), self._node, self._life, self._number, body)
        self._number += 1
        return [Ask(scribe.Publish(topic, encode(letter)))]

    @staticmethod
    def _on_delivered(topic: str, payload: bytes) -> list[Effect]:
        try:
            letter = decode(payload)
        except ProtocolError:
            return [Notify(Lost(topic, 1))]  # Its place in the topic is taken, whatever it was.
        return [Notify(arrived(letter))]
