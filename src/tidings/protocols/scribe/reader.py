"""A subscriber's place in a topic: messages once and in order, whatever order they come in.

The tree is the fast road and may lose, repeat and overtake. Offsets tell what is missing, and the root has it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidings.protocols.scribe.messages import NOW, MessageDelivered, MessagesMissed
from tidings.protocols.stack import Effect, Notify


class Reader:
    """Puts the messages of one topic into order."""

    def __init__(self, topic: str, start: int, held_max: int) -> None:
        self._topic = topic
        self._held_max = held_max
        self._held: dict[int, bytes] = {}
        self.next_offset: int | None = None if start == NOW else start
        """None until the root has said where now is."""
        self.known_end = 0
        """The end of the topic as far as anybody has told."""
        self.gap_since_ms: int | None = None
        self.asked_ms: int | None = None

    def learn_end(self, now_ms: int, end: int) -> None:
        """Somebody says how far the topic goes: what is not here yet may be late, or lost."""
        self.known_end = max(self.known_end, end)
        self._look_for_gap(now_ms)

    def on_messages(self, now_ms: int, first_offset: int, payloads: Sequence[bytes]) -> list[Effect]:
        """Messages have come, from the tree or from the root."""
        self.known_end = max(self.known_end, first_offset + len(payloads))
        before = self.next_offset
        for offset, payload in enumerate(payloads, first_offset):
            self._take(offset, payload)
        effects = self._deliver()
        if self.next_offset != before:
            self.gap_since_ms = None  # It moves on: what is behind may still be on its way.
        self._look_for_gap(now_ms)
        return effects

    def on_fetched(self, now_ms: int, first_offset: int, payloads: Sequence[bytes], end: int) -> list[Effect]:
        """The root's answer: what it no longer keeps is lost for this reader, and is said to be."""
        self.asked_ms = None
        effects: list[Effect] = []
        if self.next_offset is None:
            self.next_offset = end
            self._held = {offset: payload for offset, payload in self._held.items() if offset >= end}
            return self._deliver()
        if first_offset > self.next_offset:
            effects.append(Notify(MessagesMissed(self._topic, self.next_offset, first_offset)))
            self.next_offset = first_offset
        self.known_end = max(self.known_end, end)
        return effects + self.on_messages(now_ms, first_offset, payloads)

    def wants(self, now_ms: int, gap_ms: int, retry_ms: int) -> int | None:
        """The offset to fetch from, if it is time to; NOW if the reader does not know where to begin."""
        if self.asked_ms is not None and now_ms - self.asked_ms < retry_ms:
            return None
        if self.next_offset is None:
            return NOW
        if self.gap_since_ms is None or now_ms - self.gap_since_ms < gap_ms:
            return None
        return self.next_offset

    def _take(self, offset: int, payload: bytes) -> None:
        if self.next_offset is not None and offset < self.next_offset:
            return  # It has been delivered.
        if len(self._held) < self._held_max or offset == self.next_offset:
            self._held.setdefault(offset, payload)

    def _deliver(self) -> list[Effect]:
        effects: list[Effect] = []
        if self.next_offset is None:
            return effects
        while (payload := self._held.pop(self.next_offset, None)) is not None:
            effects.append(Notify(MessageDelivered(self._topic, self.next_offset, payload)))
            self.next_offset += 1
        return effects

    def _look_for_gap(self, now_ms: int) -> None:
        if self.next_offset is None or self.next_offset >= self.known_end:
            self.gap_since_ms = None
        elif self.gap_since_ms is None:
            self.gap_since_ms = now_ms
