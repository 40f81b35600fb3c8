"""A publisher's messages of one topic, from the first attempt until the root has them."""

from __future__ import annotations

from collections import deque
from itertools import islice

from tidings.errors import Overloaded
from tidings.protocols.scribe.log import chunks
from tidings.protocols.scribe.messages import Submit
from tidings.protocols.stack import NodeId


class Outbox:
    """Numbers messages, and gives them out again until they are taken."""

    def __init__(self, topic: str, publisher: NodeId, life: int, messages_max: int) -> None:
        self._topic, self._publisher, self.life = topic, publisher, life
        self._messages_max = messages_max
        self._waiting: deque[bytes] = deque()
        self._first_sequence = 0
        self.sent_ms: int | None = None
        """When something was last sent that has not been taken yet."""

    def __len__(self) -> int:
        return len(self._waiting)

    def check_room(self) -> None:
        """Overloaded if there is no room for another message."""
        if len(self._waiting) >= self._messages_max:
            raise Overloaded(
                f"{len(self._waiting)} messages to {self._topic!r} wait for its root to take them, which is the limit: "
                "try again later."
            )

    def put(self, payload: bytes) -> int:
        self.check_room()
        self._waiting.append(payload)
        return self._first_sequence + len(self._waiting) - 1

    def submit(self, now_ms: int, count_max: int, bytes_max: int) -> Submit:
        """What to send next. Only one such batch is under way at a time, so that none can overtake another."""
        self.sent_ms = now_ms
        payloads = next(chunks(islice(self._waiting, count_max), len, count_max, bytes_max), ())
        return Submit(self._topic, self._publisher, self.life, self._first_sequence, payloads)

    def on_accepted(self, sequence_end: int) -> bool:
        """Forgets what the root has; says whether that was news."""
        taken = sequence_end - self._first_sequence
        if taken <= 0 or taken > len(self._waiting):
            return False
        for _ in range(taken):
            self._waiting.popleft()
        self._first_sequence = sequence_end
        self.sent_ms = None
        return True

    def drop(self) -> None:
        """Gives up: the root has taken none of these, so their numbers are free again."""
        self._waiting.clear()
        self.sent_ms = None
