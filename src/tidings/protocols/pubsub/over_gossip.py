"""Publish-subscribe over gossip: every message comes to every node, and each keeps what it subscribed to.

Gossip counts messages by who publishes them, since a stream has one source. So each life of a node has one stream, of
all its messages to whatever topics, and one tree along which they travel. A message to several topics is one message:
it comes to all of their subscribers or, if its publisher dies before anybody has it, to none.

What no neighbour keeps any more is asked back from its publisher, who keeps its latest `kept_max` messages. If that
one is gone as well, or does not keep it, the message is given up after a few tries and counted as lost.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar

from tidings.errors import LimitReached, MessageTooLarge, NotSubscribed, ProtocolError
from tidings.message import check_topic
from tidings.protocols.fields import Number, Several
from tidings.protocols.gossip import Broadcast, Delivered, Missed, Skip, Supply
from tidings.protocols.pubsub.messages import (
    Letter,
    Lost,
    Publish,
    Subscribe,
    Unsubscribe,
    arrived,
    check_topics,
    decode,
    encode,
)
from tidings.protocols.stack import Ask, Effect, Message, NodeId, Notify, Send, Table

ASKED_MAX = 64
"""Messages asked back at a time."""
TRIES_MAX = 5
"""How often the same first gap of a stream is reported before it is given up."""


class AskBack(Message, frozen=True):
    """Your messages with these numbers got lost on the way: send them to me."""

    life: Number
    numbers: Several[Number]


class SentBack(Message, frozen=True):
    """One of my messages again."""

    life: Number
    number: Number
    payload: bytes


def stream_of(node: NodeId, life: int) -> str:
    return f"{node} {life}"


def source_of(stream: str) -> tuple[NodeId, int] | None:
    """The publisher of a stream and its life.

    >>> source_of("tcp://127.0.0.1:7500 17"), source_of("nonsense")
    (('tcp://127.0.0.1:7500', 17), None)
    """
    node, _, life = stream.rpartition(" ")
    return (node, int(life)) if node and life.isdecimal() else None


class OverGossip(Table):
    """The publish-subscribe layer of one node of an overlay without structure."""

    def __init__(self, node: NodeId, kept_max: int, subscriptions_max: int, payload_bytes_max: int) -> None:
        self._node = node
        self._payload_bytes_max = payload_bytes_max
        self._subscriptions_max = subscriptions_max
        self._life = 0
        self._number = 0
        self._kept: deque[bytes] = deque(maxlen=kept_max)
        """The latest messages of this node; the last one has the number before `_number`."""
        self._tries: dict[str, tuple[int, int]] = {}
        """For each stream with a gap, its first number and how often that was reported."""
        self.subscriptions: dict[str, None] = {}

    def start(self, now_ms: int) -> list[Effect]:
        self._life = now_ms
        return []

    def _on_subscribe(self, request: Subscribe) -> list[Effect]:
        check_topic(request.topic)
        if request.topic not in self.subscriptions and len(self.subscriptions) >= self._subscriptions_max:
            raise LimitReached(f"This node has {self._subscriptions_max} subscriptions: end one first.")
        self.subscriptions[request.topic] = None
        return []

    def _on_unsubscribe(self, request: Unsubscribe) -> list[Effect]:
        if request.topic not in self.subscriptions:
            raise NotSubscribed(f"This node has not subscribed to {request.topic!r}: subscribe first.")
        del self.subscriptions[request.topic]
        return []

    def _on_publish(self, request: Publish) -> list[Effect]:
        topic, *also = check_topics(request)
        letter = Letter(topic, self._node, self._life, self._number, request.body, tuple(also))
        payload = encode(letter)
        if len(payload) > self._payload_bytes_max:
            # Before it has a number: one that nobody ever sends would be waited for everywhere.
            raise MessageTooLarge(
                f"A message of {len(payload)} bytes, with topic and sender, is above the limit of "
                f"{self._payload_bytes_max}: send less at once or raise body_bytes_max."
            )
        self._number += 1
        self._kept.append(payload)
        return [Ask(Broadcast(stream_of(self._node, self._life), letter.number, payload))]

    def _on_delivered(self, news: Delivered) -> list[Effect]:
        try:
            letter = decode(news.body)
        except ProtocolError:
            return [Notify(Lost(news.topic, 1))]  # Its number is used up, whatever it was.
        topic = next((each for each in (letter.topic, *letter.also) if each in self.subscriptions), None)
        return [Notify(arrived(letter, topic))] if topic is not None else []

    # What got lost.

    def _on_missed(self, news: Missed) -> list[Effect]:
        source = source_of(news.topic)
        first = min(news.offsets)
        before, tries = self._tries.get(news.topic, (-1, 0))
        tries = tries + 1 if before == first else 1
        if source is None or tries > TRIES_MAX:
            self._tries.pop(news.topic, None)
            return [Ask(Skip(news.topic, max(news.offsets) + 1)), Notify(Lost(news.topic, len(news.offsets)))]
        if news.topic in self._tries or len(self._tries) < ASKED_MAX:
            self._tries[news.topic] = (first, tries)
        node, life = source
        return [Send((node,), AskBack(life, tuple(sorted(news.offsets)[:ASKED_MAX])))] if node != self._node else []

    def _on_ask_back(self, peer: NodeId, message: AskBack) -> list[Effect]:
        if message.life != self._life:
            return []
        first = self._number - len(self._kept)
        return [
            Send((peer,), SentBack(self._life, number, self._kept[number - first]))
            for number in message.numbers[:ASKED_MAX]
            if first <= number < self._number
        ]

    def _on_sent_back(self, peer: NodeId, message: SentBack) -> list[Effect]:
        return [Ask(Supply(stream_of(peer, message.life), message.number, message.payload))]

    on: ClassVar = {
        Subscribe: _on_subscribe,
        Unsubscribe: _on_unsubscribe,
        Publish: _on_publish,
        AskBack: _on_ask_back,
        SentBack: _on_sent_back,
        Delivered: _on_delivered,
        Missed: _on_missed,
    }
