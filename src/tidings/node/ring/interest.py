"""Which topics are read at which nodes, so that what a group's virtual node subscribes to is what its nodes need.

Every node tells the leader of its group, as soon as a client of its own begins to read a topic, and all of it again
every `TELL_EVERY_MS`. A topic that a node has not named for `SILENCE_MS_MAX` is not read there any more: nothing has to
be taken back, and whatever gets lost is said again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidings.errors import InvalidTopic
from tidings.message import check_topic
from tidings.protocols.ring.virtual_node import VirtualNode

TELL_EVERY_MS = 1_000
SILENCE_MS_MAX = 3_500
PIECE_MAX = 500
"""Topics in one message."""
TOPICS_MAX = 10_000
"""Topics that one node names. Bodies of others are fetched one by one, which is slower."""
PROXIES_MAX = 64
"""Nodes that read one topic; a group has far fewer."""
SYNC_EVERY_MS = 1_000

Tell = Callable[[int, str, tuple[str, ...]], None]
"""Tells a leader some topics, at a time."""


class Reading:
    """One node's half: what its clients read, told to the leader of its group."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._leader = ""
        self._told: dict[str, None] = {}
        self._due_ms = 0

    def note(self, now_ms: int, topics: Iterable[str]) -> None:
        """A client reads these topics. The leader hears of it now, so that bodies come before they are missed."""
        new = [topic for topic in topics if topic not in self._told and is_topic(topic)]
        new = new[: TOPICS_MAX - len(self._told)]
        if new:
            self._told.update(dict.fromkeys(new))
            self._say(now_ms, new)

    def tick(self, now_ms: int, leader: str, topics: Callable[[], Iterable[str]]) -> None:
        """Says everything again when it is due, and at once if somebody else leads."""
        if leader == self._leader and now_ms < self._due_ms:
            return
        self._leader, self._due_ms = leader, now_ms + TELL_EVERY_MS
        self._told = dict.fromkeys([topic for topic in dict.fromkeys(topics()) if is_topic(topic)][:TOPICS_MAX])
        self._say(now_ms, list(self._told))

    def _say(self, now_ms: int, topics: list[str]) -> None:
        if self._leader:
            for start in range(0, len(topics), PIECE_MAX):
                self._tell(now_ms, self._leader, tuple(topics[start : start + PIECE_MAX]))


class Interests:
    """The leader's half: which nodes of its group want the bodies of a topic."""

    def __init__(self) -> None:
        self._heard: dict[str, dict[str, int]] = {}
        """topic -> node -> when it was last named."""
        self._sync_ms = 0

    def learn(self, now_ms: int, proxy: str, topics: Iterable[str]) -> None:
        """A node has named topics."""
        for topic in topics:
            proxies = self._heard.get(topic)
            if proxies is None:
                if not is_topic(topic):
                    continue
                proxies = self._heard[topic] = {}
                self._sync_ms = 0  # The virtual node has to subscribe, now.
            if proxy in proxies or len(proxies) < PROXIES_MAX:
                proxies[proxy] = now_ms

    def proxies(self, topic: str) -> tuple[str, ...]:
        return tuple(self._heard.get(topic, ()))

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self._heard)

    def sync(self, now_ms: int, virtual_node: VirtualNode, is_own: Callable[[str], bool]) -> None:
        """Subscribes the virtual node to what is wanted, and to nothing else.

        Topics that the group owns itself come from its own leader: their bodies never go by way of the virtual node.
        """
        if now_ms < self._sync_ms:
            return
        self._sync_ms = now_ms + SYNC_EVERY_MS
        self._forget_silent(now_ms)
        for topic in [topic for topic in virtual_node.topics if topic not in self._heard or is_own(topic)]:
            virtual_node.unsubscribe(topic)
        for topic in self._heard:
            if topic not in virtual_node.topics and not is_own(topic) and not virtual_node.subscribe(topic):
                break  # It has a part in too many trees.

    def _forget_silent(self, now_ms: int) -> None:
        for topic, proxies in list(self._heard.items()):
            for proxy in [proxy for proxy, heard_ms in proxies.items() if now_ms - heard_ms > SILENCE_MS_MAX]:
                del proxies[proxy]
            if not proxies:
                del self._heard[topic]


def is_topic(name: str) -> bool:
    """Whether a name may name a topic; clients may ask for anything.

    >>> is_topic("news"), is_topic("new\\nline")
    (True, False)
    """
    try:
        check_topic(name)
    except InvalidTopic:
        return False
    return True
