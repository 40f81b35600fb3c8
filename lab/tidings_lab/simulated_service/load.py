"""What clients at the nodes of a ring do in an experiment, drawn by lot, and an account of what came of it.

There is one client at every node. It subscribes to a few topics, and puts so many messages, one after another, each to
a topic drawn by lot. All subscribe before anybody puts, so a message is owed to every subscriber of its topic, once;
and the subscribers of a topic have to see its messages in the same order. The clock is the caller's: the same account
is kept of processes in real time and of engines in virtual time.
"""

from __future__ import annotations

import random
from collections import Counter

import msgspec

DOCUMENT_TOPICS = 30
SUBSCRIPTIONS_EACH = 5


class ServiceLoad(msgspec.Struct, frozen=True):
    """Who subscribes to what, and who puts what where. The place in a tuple is the client's number."""

    topics: tuple[str, ...]
    subscriptions: tuple[tuple[str, ...], ...]
    puts: tuple[tuple[str, ...], ...]
    """The topic of each message."""


def draw_load(clients: int, messages: int, seed: int, prefix: str = "topic") -> ServiceLoad:
    """The load of so many clients with so many messages each.

    >>> load = draw_load(clients=3, messages=2, seed=1)
    >>> len(load.topics), [len(topics) for topics in load.puts], draw_load(3, 2, 1) == load
    (30, [2, 2, 2], True)
    """
    rng = random.Random(f"{seed} {clients} {messages}")
    topics = tuple(f"{prefix}-{number}" for number in range(DOCUMENT_TOPICS))
    subscriptions = tuple(tuple(rng.sample(topics, SUBSCRIPTIONS_EACH)) for _ in range(clients))
    puts = tuple(tuple(rng.choice(topics) for _ in range(messages)) for _ in range(clients))
    return ServiceLoad(topics, subscriptions, puts)


class ServiceAccount:
    """What was put, what arrived, and when. Times are in milliseconds by one clock, whichever."""

    def __init__(self, load: ServiceLoad) -> None:
        self.load = load
        self._readers = Counter(topic for topics in load.subscriptions for topic in topics)
        self._put_at: dict[str, float] = {}
        self._topic_of: dict[str, str] = {}
        self._seen: list[dict[str, dict[str, int]]] = [{topic: {} for topic in topics} for topics in load.subscriptions]
        """What each client had of each of its topics, in its order, and how often."""
        self.acknowledged = 0
        self.owed = 0
        self.delivered = 0
        self.doubled = 0
        self.strange = 0
        """Messages that were never put to a topic that the client had subscribed to."""
        self.latencies_ms: list[float] = []
        self.first_put_ms = 0.0
        self.last_acknowledged_ms = 0.0
        self.last_delivered_ms = 0.0

    @property
    def published(self) -> int:
        """How many messages there are in all."""
        return sum(map(len, self.load.puts))

    @property
    def is_published(self) -> bool:
        return self.acknowledged == self.published

    @property
    def is_over(self) -> bool:
        """Whether everything was put and has arrived."""
        return self.is_published and not self.lost

    @property
    def lost(self) -> int:
        return self.owed - self.delivered

    def on_put(self, client: int, number: int, now_ms: float) -> tuple[str, str]:
        """A client puts its next message: the topic, and the text that tells it from all others."""
        topic, text = self.load.puts[client][number], f"{client} {number}"
        if not self._put_at:
            self.first_put_ms = now_ms
        self._put_at[text], self._topic_of[text] = now_ms, topic
        self.owed += self._readers[topic]
        return topic, text

    def on_acknowledged(self, now_ms: float) -> None:
        self.acknowledged += 1
        self.last_acknowledged_ms = max(self.last_acknowledged_ms, now_ms)

    def on_delivered(self, client: int, topic: str, text: str, now_ms: float) -> None:
        seen = self._seen[client].get(topic)
        if seen is None or self._topic_of.get(text) != topic:
            self.strange += 1
            return
        seen[text] = seen.get(text, 0) + 1
        if seen[text] > 1:
            self.doubled += 1
            return
        self.delivered += 1
        self.latencies_ms.append(now_ms - self._put_at[text])
        self.last_delivered_ms = max(self.last_delivered_ms, now_ms)

    @property
    def disordered(self) -> int:
        """Topics whose subscribers have not all seen the same, or not in the same order."""
        orders: dict[str, dict[tuple[str, ...], None]] = {}
        for topics in self._seen:
            for topic, seen in topics.items():
                orders.setdefault(topic, {})[tuple(seen)] = None
        return sum(len(found) > 1 for found in orders.values())

    def percentile_ms(self, share: float) -> float | None:
        """How long so large a share of the deliveries took at most, from the put; None without any."""
        if not self.latencies_ms:
            return None
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]
