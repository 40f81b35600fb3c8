"""Reading any range of a topic's offsets, without a subscription."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from tidings.client.link import Frame
from tidings.client.operations import Core, Operation, ask, expect, topic, wait_for
from tidings.client.session import Call
from tidings.errors import InvalidRequest, ProtocolError
from tidings.message import Batch, check_topic
from tidings.protocols.broker.bulk import AskOffset, OffsetFound, Read, ReadDone
from tidings.wire.codec import decode_columns

READ_MESSAGES = 65_536
READ_BYTES = 1024 * 1024
"""What one answer brings; while the caller works on it, the next one is under way."""

RangeStart = Literal["earliest"] | int
When = datetime | float


class RangeReader:
    """The steps of one loop over a range. One answer is in hand and one under way, so memory stays bounded."""

    def __init__(self, core: Core, name: str, start: RangeStart, end: int | None) -> None:
        if not (start == "earliest" or (type(start) is int and start >= 0)):
            raise InvalidRequest(f'A range starts at "earliest" or at an offset, and this is {start!r}.')
        if not (end is None or (type(end) is int and end >= 0)):
            raise InvalidRequest(f"A range ends before an offset, or at None for what is there now, not {end!r}.")
        self._core = core
        self._topic = check_topic(name)
        self._start = start
        self._at = 0
        self._end = end
        self._under_way: Call | None = None
        self._batches: deque[Batch] = deque()

    def begin(self) -> Operation[None]:
        """Finds out where the range begins and ends, and asks for the first piece of it."""
        if self._end is None or self._start == "earliest":
            info = yield from topic(self._core, self._topic)
            self._end = info.next_offset if self._end is None else self._end
            self._at = info.first_offset if self._start == "earliest" else self._start
        else:
            self._at = self._start
        self._ask(self._at, self._end)

    def step(self) -> Operation[Batch | None]:
        """The next batch, None at the end of the range."""
        while not self._batches:
            call, self._under_way = self._under_way, None
            if call is None:
                return None
            done = expect((yield from wait_for(call.pending)), ReadDone)
            start, end = self._at, self._end
            assert end is not None
            if done.batches:
                last = done.batches[-1]
                self._at = min(end, last.first_offset + last.count)
            if self._at < end:
                if self._at == start:
                    raise ProtocolError(
                        f"The broker has nothing of {self._topic!r} at offset {start}, and {end - start} messages "
                        "were to be read: is that a tidings broker?"
                    )
                self._ask(self._at, end)
            self._batches.extend(_open(self._topic, done, call.received, start, end))
        return self._batches.popleft()

    def leave(self) -> None:
        """Nobody waits for the rest."""
        if self._under_way is not None:
            self._core.session.forget(self._under_way)
            self._under_way = None

    def _ask(self, start: int, end: int) -> None:
        core, name = self._core, self._topic
        self._under_way = core.session.request(
            core.now_ms(), lambda number, _: Read(number, name, start, end, READ_MESSAGES, READ_BYTES)
        )


def _open(name: str, done: ReadDone, bodies: Sequence[Frame], start: int, end: int) -> list[Batch]:
    """The batches of an answer, cut to the range."""
    if len(bodies) != len(done.batches):
        raise ProtocolError(f"{len(done.batches)} batches came with {len(bodies)} bodies: is that a tidings broker?")
    batches = []
    for described, body in zip(done.batches, bodies, strict=True):
        stored_at = described.stored_ms / 1000 if described.stored_ms else None
        batch = Batch(name, described.first_offset, decode_columns(body), 1, stored_at, len(body))
        if len(batch.values) != described.count:
            raise ProtocolError(
                f"A batch of {name!r} at {described.first_offset} was said to have {described.count} messages and "
                f"has {len(batch.values)}: is that a tidings broker?"
            )
        batches.append(batch.after(start).before(end))
    return batches


def offset_at(core: Core, name: str, when: When) -> Operation[int]:
    """The first offset that was stored at or after a time."""
    check_topic(name)
    seconds = when.timestamp() if isinstance(when, datetime) else when
    if not (isinstance(seconds, int | float) and 0 <= seconds < 1e12):
        raise InvalidRequest(f"A time is a datetime or a number of seconds since 1970, and this is {when!r}.")
    time_ms = math.ceil(seconds * 1000)
    answer = yield from ask(core, lambda number, _: AskOffset(number, name, time_ms), OffsetFound)
    return answer.offset
