"""Publish-subscribe over Scribe: topics have an owner, who orders their messages and knows which are missing.

Scribe does nearly all of it. This layer gives every message the name of its publisher, and the application the same
words as over gossip.

A message to several topics goes to the owner of each. The node takes it for all of them or for none, and then submits
it until every owner has it; only if the node itself dies in between some may have it and others not. A subscriber of
several of its topics remembers what has come to more than one, and passes it on once.
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
    check_topics,
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

SEEN_MAX = 10_000
"""So many messages to several topics are remembered; a copy of an older one would come a second time."""


class OverScribe:
    """The publish-subscribe layer of one node of a ring."""

    handles = (Subscribe, Unsubscribe, Publish)
    listens = (scribe.MessageDelivered, scribe.MessagesMissed, scribe.PublishRefused)

    def __init__(self, node: NodeId) -> None:
        self._node = node
        self._life = 0
        self._number = 0
        self._seen: dict[tuple[NodeId, int, int], None] = {}
        """Messages to several topics that have arrived."""

    def start(self, now_ms: int) -> list[Effect]:
        self._life = now_ms
        return []

    def handle(self, event: Event) -> list[Effect]:
        match event:
            case Notified(_, scribe.MessageDelivered(topic, _, payload)):
                return self._on_delivered(topic, payload)
            case Requested(_, Publish() as request):
                return self._on_publish(request)
            case Requested(_, Subscribe(topic)):
                return [Ask(scribe.Subscribe(check_topic(topic)))]
            case Requested(_, Unsubscribe(topic)):
                return [Ask(scribe.Unsubscribe(topic))]
            case Notified(_, scribe.MessagesMissed(topic, first_offset, end_offset)):
                return [Notify(Lost(topic, end_offset - first_offset))]
            case Notified(_, scribe.PublishRefused(topic, reason)):
                return [Notify(Rejected(topic, reason))]
        raise UnexpectedEvent(event)

    def _on_publish(self, request: Publish) -> list[Effect]:
        topic, *also = check_topics(request)
        letter = Letter(topic, self._node, self._life, self._number, request.body, tuple(also))
        self._number += 1
        return [Ask(scribe.Publish(topic, encode(letter), tuple(also)))]

    def _on_delivered(self, topic: str, payload: bytes) -> list[Effect]:
        try:
            letter = decode(payload)
        except ProtocolError:
            return [Notify(Lost(topic, 1))]  # Its place in the topic is taken, whatever it was.
        if letter.also:
            name = (letter.publisher, letter.life, letter.number)
            if name in self._seen:
                return []
            if len(self._seen) >= SEEN_MAX:
                del self._seen[next(iter(self._seen))]
            self._seen[name] = None
        return [Notify(arrived(letter, topic))]
