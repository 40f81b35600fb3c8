"""put_many with patience: what the broker has no room for is tried again.

The values go out in pieces. Of a piece that is refused as Overloaded the first half is tried, because a topic that
has room for some messages does not take a batch that has more; when there is no room for a single one, that is tried
again after a pause. What was stored of a piece is always its beginning, so nothing is stored twice and the order stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Any

from tidings.client import operations
from tidings.client.arguments import check_seconds
from tidings.client.operations import OVERLOAD_PAUSE_MS, OVERLOAD_PAUSE_MS_MAX, Core, Operation, Until
from tidings.client.puts import Bulk
from tidings.client.request import Identity
from tidings.client.rows import Source, Value
from tidings.errors import Overloaded, Unavailable
from tidings.message import Receipts, check_topic

PIECE_MESSAGES_MAX = 4_096


class Filling:
    """One put_many that waits for room."""

    def __init__(
        self,
        core: Core,
        topic: str,
        values: Iterable[Value],
        keys: Iterable[Value | None] | None,
        identity: Identity | None,
        wait: float,
        headers: Iterable[Mapping[str, Value] | None] | None = None,
        ids: Iterable[str | None] | None = None,
    ) -> None:
        Source(values, keys, core.now_us, headers, ids)  # Refuses one value that was given for many.
        self._core = core
        self._topic = check_topic(topic)
        self._values = iter(values)
        self._beside = [None if column is None else iter(column) for column in (keys, headers, ids)]
        """The columns of keys, headers and ids, where they are given."""
        self._identity = identity
        self._wait = wait
        self._size = PIECE_MESSAGES_MAX
        self._next_values: list[Value] = []
        self._next_beside: list[list[Any]] = [[], [], []]
        self._total = Receipts(self._topic, None, 0)

    def steps(self, unanswered: Bulk | None = None) -> Operation[Receipts]:
        """Stores piece after piece, beginning with one that has been sent and not answered, if there is one."""
        core, entry = self._core, unanswered
        deadline_ms, pause_ms = core.deadline_ms(self._wait), OVERLOAD_PAUSE_MS
        while True:
            try:
                if entry is not None:
                    who = self._identity or core.session.main
                    stored: Receipts = yield from operations.resend(core, entry, who)
                else:
                    entry = self._give()
                    if entry is None:
                        return self._total
                    stored = yield from operations.receipts(core, entry, self._identity)
            except Unavailable as error:
                error.receipts = self._total_with(error.receipts)
                error.resend = partial(self._resend, entry)
                raise
            except Overloaded as error:
                before = self._total.count
                self._took(error.receipts)
                if self._total.count > before:
                    deadline_ms, pause_ms = core.deadline_ms(self._wait), OVERLOAD_PAUSE_MS
                self._size = min(self._size, len(self._next_values)) // 2
                if not self._size:  # There is no room for a single one.
                    self._size = 1
                    now_ms = core.now_ms()
                    assert deadline_ms is not None
                    if now_ms >= deadline_ms:
                        error.receipts = self._total
                        raise
                    yield Until(lambda: False, min(now_ms + pause_ms, deadline_ms))
                    pause_ms = min(2 * pause_ms, OVERLOAD_PAUSE_MS_MAX)
            else:
                self._took(stored)
                self._size = min(2 * self._size, PIECE_MESSAGES_MAX)
                deadline_ms, pause_ms = core.deadline_ms(self._wait), OVERLOAD_PAUSE_MS
            entry = None

    def _resend(self, unanswered: Bulk | None) -> Receipts:
        found: Receipts = self._core.run(self.steps(unanswered))
        return found

    def _give(self) -> Bulk | None:
        """Hands the next piece to the outbox; None at the end."""
        self._next_values += islice(self._values, max(0, self._size - len(self._next_values)))
        values = self._next_values[: self._size]
        wanted = max(1, len(values))  # One more than there are values would be noticed.
        for column, waiting in zip(self._beside, self._next_beside, strict=True):
            waiting += islice(column or (), max(0, wanted - len(waiting)))
        if not values and not any(self._next_beside):
            return None
        keys, headers, ids = (
            None if column is None else waiting[:wanted]
            for column, waiting in zip(self._beside, self._next_beside, strict=True)
        )
        core = self._core
        entry = Bulk(self._topic, Source(values, keys, core.now_us, headers, ids))
        return operations.give(core, entry, self._identity)

    def _took(self, stored: Receipts | None) -> None:
        """So much of the present piece has been stored."""
        if stored is not None:
            self._total = self._total_with(stored)
            del self._next_values[: stored.count]
            for waiting in self._next_beside:
                del waiting[: stored.count]

    def _total_with(self, stored: Receipts | None) -> Receipts:
        total = self._total
        if stored is None:
            return total
        first_offset = stored.first_offset if total.first_offset is None else total.first_offset
        count, duplicates = total.count + stored.count, total.duplicates + stored.duplicates
        return Receipts(self._topic, first_offset, count, duplicates)


def put_many(
    core: Core,
    topic: str,
    values: Iterable[Value],
    keys: Iterable[Value | None] | None = None,
    identity: Identity | None = None,
    wait: float | None = None,
    headers: Iterable[Mapping[str, Value] | None] | None = None,
    ids: Iterable[str | None] | None = None,
) -> Operation[Receipts]:
    """Stores many messages, batch by batch; what is Overloaded is tried again for `wait` seconds."""
    seconds = core.session.settings.overload_wait_ms / 1000 if wait is None else check_seconds(wait)
    if seconds <= 0:
        entry = Bulk(check_topic(topic), Source(values, keys, core.now_us, headers, ids))
        stored: Receipts = yield from operations.receipts(core, operations.give(core, entry, identity), identity)
        return stored
    return (yield from Filling(core, topic, values, keys, identity, seconds, headers, ids).steps())
