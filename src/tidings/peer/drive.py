"""The automated client: commands drawn by lot, and an account of what came of them.

It knows everything that it published and who was subscribed at the time. So it can say of every message to whom it is
owed: to each live node whose subscription was in effect when the message was published and has not been ended since.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from tidings.errors import Unavailable
from tidings.peer.caller import NodeCaller
from tidings.transport.curve import ClientOptions
from tidings.wire.door import Text

POLL_SECONDS = 0.05
READY_SECONDS_MAX = 120.0
"""How long a condition is waited for: nodes share their machine with others, and may be slow."""

CALL_SECONDS_MAX = 30.0

SUBSCRIBE, UNSUBSCRIBE, PUBLISH = range(3)
WEIGHTS = (3, 1, 10)
"""How often each command is drawn, in this order."""
SEVERAL = 0.25
"""How many of the messages go to two topics."""


class NodeAccount(msgspec.Struct):
    """What a driver had one node do, and what came of it."""

    node: str
    subscribed: int = 0
    unsubscribed: int = 0
    published: int = 0
    received: int = 0
    owed: int = 0
    missing: int = 0
    """Messages that are owed and have not come."""
    doubled: int = 0
    """Messages that came a second time."""
    strange: int = 0
    """Messages of topics that it had not subscribed to."""


class _Post(msgspec.Struct):
    """A message and whom it is owed to."""

    topics: tuple[str, ...]
    publisher: str
    owed: dict[str, None]


class Driver:
    """Drives some nodes from one thread, and keeps account."""

    def __init__(self, addresses: Iterable[str], curve: ClientOptions | None = None) -> None:
        self._curve = curve
        self.callers: dict[str, NodeCaller] = {}
        self.accounts: dict[str, NodeAccount] = {}
        self.subscriptions: dict[str, dict[str, None]] = {}
        self._ever: dict[str, dict[str, None]] = {}
        """What each node has ever been subscribed to."""
        self._posts: dict[str, _Post] = {}
        self._had: dict[str, Counter[str]] = {}
        self._token = f"{time.time_ns():x}"
        """Tells the messages of this driver from those of others."""
        self.last_at = time.monotonic()
        """When something last came."""
        for address in addresses:
            self.add(address)

    def add(self, node: str) -> None:
        """One more node to drive."""
        self.callers[node] = NodeCaller(node, self._curve, CALL_SECONDS_MAX)
        self.accounts[node] = NodeAccount(node)
        self.subscriptions[node], self._ever[node], self._had[node] = {}, {}, Counter()

    def close(self) -> None:
        for caller in self.callers.values():
            caller.close()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Commands.

    def subscribe(self, node: str, topic: str) -> None:
        self.callers[node].subscribe(topic)
        self.subscriptions[node][topic] = self._ever[node][topic] = None
        self.accounts[node].subscribed += 1

    def unsubscribe(self, node: str, topic: str) -> None:
        self.callers[node].unsubscribe(topic)
        del self.subscriptions[node][topic]
        self.accounts[node].unsubscribed += 1
        left = self.subscriptions[node]
        for post in self._posts.values():
            if topic in post.topics and not any(each in left for each in post.topics):
                post.owed.pop(node, None)  # It may have come, or not.

    def publish(self, node: str, topic: str, *also: str) -> None:
        text = f"{self._token} {len(self._posts)}"
        topics = (topic, *also)
        owed = {other: None for other, had in self.subscriptions.items() if any(each in had for each in topics)}
        self._posts[text] = _Post(topics, node, owed)
        self.callers[node].publish(topic, text, also)
        self.accounts[node].published += 1

    def forget(self, node: str) -> None:
        """A node is gone: nothing is owed to it, nor of what it published."""
        self.callers.pop(node).close()
        del self.subscriptions[node], self.accounts[node], self._had[node], self._ever[node]
        for post in self._posts.values():
            post.owed.pop(node, None)
            if post.publisher == node:
                post.owed.clear()

    def command(self, rng: random.Random, topics: list[str]) -> None:
        """One command by lot, to a node by lot."""
        node, topic = rng.choice(list(self.callers)), rng.choice(topics)
        kind = rng.choices((SUBSCRIBE, UNSUBSCRIBE, PUBLISH), WEIGHTS)[0]
        if kind == PUBLISH:
            also = rng.choice(topics) if rng.random() < SEVERAL else topic
            self.publish(node, topic, *(() if also == topic else (also,)))
        elif kind == UNSUBSCRIBE and topic in self.subscriptions[node]:
            self.unsubscribe(node, topic)
        elif topic not in self.subscriptions[node]:
            self.subscribe(node, topic)
            self.wait_until_ready()

    # Waiting, by looking again.

    def wait_until_ready(self) -> None:
        """Waits until every subscription is in effect."""

        waiting = list(self.callers.values())

        def is_ready() -> bool:
            waiting[:] = [caller for caller in waiting if not all(caller.look().subscriptions.values())]
            return not waiting

        wait_until(is_ready, "every subscription is in effect")

    def collect(self) -> None:
        """Takes what has come."""
        for node, caller in self.callers.items():
            texts = caller.take()
            if texts:
                self.last_at = time.monotonic()
            for text in texts:
                self._note(node, text)

    def _note(self, node: str, text: Text) -> None:
        if text.text not in self._posts:
            return  # Somebody else published it.
        account, had = self.accounts[node], self._had[node]
        had[text.text] += 1
        account.received += 1
        account.doubled += had[text.text] > 1
        account.strange += text.topic not in self._ever[node]

    def missing(self) -> int:
        """Messages that are owed and have not come, of all nodes."""
        return sum(text not in self._had[node] for text, post in self._posts.items() for node in post.owed)

    def drain(self) -> None:
        """Waits until everything that is owed has come."""

        def is_drained() -> bool:
            self.collect()
            return not self.missing()

        wait_until(is_drained, "everything has arrived")

    def account(self) -> list[NodeAccount]:
        """The account of every live node."""
        for account in self.accounts.values():
            account.owed = account.missing = 0
        for text, post in self._posts.items():
            for node in post.owed:
                self.accounts[node].owed += 1
                self.accounts[node].missing += text not in self._had[node]
        return list(self.accounts.values())


def wait_until(condition: Callable[[], bool], what: str, seconds_max: float = READY_SECONDS_MAX) -> None:
    """Looks again and again; Unavailable when it takes too long."""
    deadline = time.monotonic() + seconds_max
    while not condition():
        if time.monotonic() >= deadline:
            raise Unavailable(f"Gave up after {seconds_max:.0f} s: {what}.")
        time.sleep(POLL_SECONDS)


def drive(
    addresses: Iterable[str],
    commands: int,
    seed: int,
    topics: int,
    curve: ClientOptions | None = None,
    on_command: Callable[[], None] = lambda: None,
) -> list[NodeAccount]:
    """Issues random commands to some nodes, waits until everything has come, and returns the account."""
    rng = random.Random(seed)
    names = [f"topic-{index}" for index in range(topics)]
    with Driver(addresses, curve) as driver:
        for _ in range(commands):
            driver.command(rng, names)
            driver.collect()
            on_command()
        with contextlib.suppress(Unavailable):  # The account says what is missing.
            driver.drain()
        return driver.account()
