"""Writing under the name of an attempt, for those that are repeated when they fail.

`Stage` stores messages where nobody sees them; `publish` makes the stages of the attempts that succeeded visible,
all at once, and once only for each number of a query's batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tidings.client.operations import (
    OVERLOAD_PAUSE_MS,
    OVERLOAD_PAUSE_MS_MAX,
    Core,
    Operation,
    Until,
    ask,
    expect,
    wait_for,
)
from tidings.client.request import Request
from tidings.errors import InvalidRequest, MessageTooLarge, Overloaded
from tidings.message import Columns, Headers, check_name, check_topic, cut
from tidings.protocols.broker.bulk import Discard, DiscardDone, Publish, PublishDone, StageDone, StageName
from tidings.protocols.broker.bulk import Stage as StageRequest
from tidings.wire.codec import encode

if TYPE_CHECKING:
    from tidings.client.aio import AsyncBus
    from tidings.client.bus import Bus

BATCH_BYTES = 512 * 1024
BATCH_MESSAGES = 16_384
"""What goes into one stored batch, about: large ones cost readers in bulk less."""
IN_FLIGHT_MAX = 8
ROW_OVERHEAD_BYTES = 16


class Stager:
    """The operations of one stage."""

    def __init__(self, core: Core, query: str, batch: int, name: str, sink: str = "") -> None:
        if type(batch) is not int or batch < 0:
            raise InvalidRequest(f"A query's batches are numbered from 0, and this is {batch!r}.")
        self.query = check_name(query)
        self.batch = batch
        self.name = check_name(name)
        self.sink = check_topic(sink) if sink else ""
        self.count = 0
        self.published = False
        """Whether the broker has said that this batch of the query is published already; nothing is sent then."""
        self._core = core
        self._number = 0
        self._under_way: deque[Request] = deque()

    def columns(
        self,
        values: list[bytes],
        keys: list[bytes | None] | None,
        headers: list[Headers | None] | None,
        ids: list[str | None] | None,
    ) -> Columns:
        """Messages of this client and moment, of which nothing is copied."""
        if any(column is not None and len(column) != len(values) for column in (keys, headers, ids)):
            raise InvalidRequest("The columns differ in length: give one key, header and id for each value.")
        return Columns(1, self._core.client_id, values, keys, headers, ids, self._core.now_us())

    def write(self, topic: str, columns: Columns) -> Operation[None]:
        """Stores messages; waits only for room, so errors may come with a later call."""
        check_topic(topic)
        for count, body in self._pieces(columns):
            if self.published:
                return
            while len(self._under_way) >= IN_FLIGHT_MAX:
                yield from self._take_answer()
            self._send(topic, count, body)

    def _send(self, topic: str, count: int, body: bytes) -> None:
        self._number += 1
        self.count += count
        core, name = self._core, self._core.client_id
        fields = (self.query, self.batch, self.name, self._number, topic, count, self.sink)
        self._under_way.append(
            core.session.request(
                core.now_ms(), lambda number, epoch: StageRequest(number, name, epoch, *fields), (body,)
            )
        )

    def finish(self) -> Operation[StageName]:
        """Waits until everything is stored; what `publish` wants to know of the stage."""
        while self._under_way:
            yield from self._take_answer()
        return StageName(self.name, self.count)

    def _take_answer(self) -> Operation[None]:
        done = expect((yield from wait_for(self._under_way.popleft().future)), StageDone)
        self.published = self.published or done.published

    def _pieces(self, columns: Columns) -> Iterator[tuple[int, bytes]]:
        """Bodies of about the wanted size: how many messages, and the bytes."""
        count = len(columns.values)
        if not count:
            return
        size = sum(map(len, columns.values)) + ROW_OVERHEAD_BYTES * count
        at_once = max(1, min(BATCH_MESSAGES, BATCH_BYTES * count // size))
        limits = self._core.session.limits
        for start in range(0, count, at_once):
            piece = columns if at_once >= count else cut(columns, slice(start, start + at_once))
            yield from _encoded(piece, limits.batch_bytes_max if limits else 8 * BATCH_BYTES)


def _encoded(columns: Columns, bytes_max: int) -> Iterator[tuple[int, bytes]]:
    """One body, or several halves when keys and headers made it too large."""
    count, body = len(columns.values), encode(columns)
    if len(body) <= bytes_max:
        yield count, body
    elif count == 1:
        raise MessageTooLarge(f"A message of {len(body)} bytes is above the limit of {bytes_max}: split it.")
    else:
        for where in (slice(0, count // 2), slice(count // 2, None)):
            yield from _encoded(cut(columns, where), bytes_max)


class Stage:
    """What one attempt to write has stored, not yet visible. Made by `Bus.stage`."""

    def __init__(self, bus: Bus, core: Core, query: str, batch: int, name: str, sink: str) -> None:
        self._bus = bus
        self._stager = Stager(core, query, batch, name, sink)

    @property
    def published(self) -> bool:
        """Whether this batch of the query was published before; what is written is then not even sent."""
        return self._stager.published

    def write(
        self,
        topic: str,
        values: list[bytes],
        keys: list[bytes | None] | None = None,
        headers: list[Headers | None] | None = None,
        ids: list[str | None] | None = None,
    ) -> None:
        """Stores many messages for a topic, as columns. An error may come out of a later call."""
        self._bus.perform(self._stager.write(topic, self._stager.columns(values, keys, headers, ids)))

    def finish(self) -> StageName:
        """Waits until all of it is stored; the result is for `Bus.publish`."""
        return self._bus.perform(self._stager.finish())


class AsyncStage:
    """The same, awaited. Made by `AsyncBus.stage`."""

    def __init__(self, bus: AsyncBus, core: Core, query: str, batch: int, name: str, sink: str) -> None:
        self._bus = bus
        self._stager = Stager(core, query, batch, name, sink)

    @property
    def published(self) -> bool:
        """Whether this batch of the query was published before; what is written is then not even sent."""
        return self._stager.published

    async def write(
        self,
        topic: str,
        values: list[bytes],
        keys: list[bytes | None] | None = None,
        headers: list[Headers | None] | None = None,
        ids: list[str | None] | None = None,
    ) -> None:
        """Stores many messages for a topic, as columns. An error may come out of a later call."""
        await self._bus.perform(self._stager.write(topic, self._stager.columns(values, keys, headers, ids)))

    async def finish(self) -> StageName:
        """Waits until all of it is stored; the result is for `AsyncBus.publish`."""
        return await self._bus.perform(self._stager.finish())


def publish(
    core: Core, query: str, batch: int, stages: Sequence[StageName], once: bool, wait: float, sink: str = ""
) -> Operation[PublishDone]:
    """Makes stages visible; what is refused as Overloaded is tried again for `wait` seconds."""
    name, named = core.client_id, tuple(stages)
    check_name(query)
    until_ms = core.deadline_ms(wait)
    assert until_ms is not None
    pause_ms = OVERLOAD_PAUSE_MS
    while True:
        try:
            return (
                yield from ask(
                    core,
                    lambda number, epoch: Publish(number, name, epoch, query, batch, named, once, sink),
                    PublishDone,
                )
            )
        except Overloaded:
            now_ms = core.now_ms()
            if now_ms >= until_ms:
                raise
            yield Until(lambda: False, min(now_ms + pause_ms, until_ms))
            pause_ms = min(2 * pause_ms, OVERLOAD_PAUSE_MS_MAX)


def discard(core: Core, stages: Sequence[str]) -> Operation[int]:
    """Drops stages that nobody will publish; how many were there."""
    name, named = core.client_id, tuple(stages)
    done = yield from ask(core, lambda number, epoch: Discard(number, name, epoch, named), DiscardDone)
    return done.count
