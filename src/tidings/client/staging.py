"""Writing under the name of an attempt, for those that are repeated when they fail.

`Stage` stores messages where nobody sees them; `publish` makes the stages of the attempts that succeeded visible,
all at once, and once only for each number of a query's batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from operator import countOf
from typing import TypeVar

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
from tidings.client.performing import AwaitingPart, BlockingPart
from tidings.client.request import Request
from tidings.client.shells import AwaitingShell, BlockingShell
from tidings.errors import InvalidRequest, MessageTooLarge, Overloaded
from tidings.message import Columns, Headers, check_name, check_size, check_topic, cut
from tidings.protocols.broker.bulk import Discard, DiscardDone, Publish, PublishDone, StageDone, StageName, name_stage
from tidings.protocols.broker.bulk import Stage as StageRequest
from tidings.protocols.broker.messages import Welcome
from tidings.wire.codec import encode

N = TypeVar("N", str, StageName)

BATCH_BYTES = 512 * 1024
BATCH_MESSAGES = 16_384
"""What goes into one stored batch, about: large ones cost readers in bulk less."""
IN_FLIGHT_MAX = 8
ROW_OVERHEAD_BYTES = 16


class Stager:
    """The operations of one stage."""

    def __init__(self, core: Core, query: str, batch: int, name: str, sink: str = "") -> None:
        if type(batch) is not int or batch < 0:
            raise InvalidRequest(f"A query's batch must be a number from 0 on, not {batch!r}.")
        self.query = check_name(query)
        self.batch = batch
        self.name = check_name(name)
        self.sink = check_topic(sink) if sink else ""
        self.count = 0
        self.published = False
        """Whether the broker has said that this batch of the query is published already; nothing is sent then."""
        self._core = core
        self._number = 0
        self._last: dict[str, int] = {}
        """topic -> the number of the last batch for it."""
        self._under_way: deque[Request] = deque()

    def columns(
        self,
        values: list[bytes],
        keys: list[bytes | None] | None,
        headers: list[Headers | None] | None,
        ids: list[str | None] | None,
    ) -> Columns:
        """Messages of this client and moment, of which nothing is copied."""
        given = [column for column in (values, keys, headers, ids) if column is not None]
        if not all(isinstance(column, list) for column in given) or countOf(map(type, values), bytes) != len(values):
            raise InvalidRequest("A stage takes columns: a list of values, all bytes, and lists beside it.")
        if any(len(column) != len(values) for column in given):
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
        fields = (self.query, self.batch, self.name, self._number, topic, count, self.sink, self._last.get(topic, 0))
        self._last[topic] = self._number
        self._under_way.append(
            core.session.request(
                core.now_ms(), lambda number, epoch: StageRequest(number, name, epoch, *fields), (body,)
            )
        )

    def finish(self) -> Operation[StageName]:
        """Waits until everything is stored; what `publish` wants to know of the stage."""
        while self._under_way:
            yield from self._take_answer()
        return name_stage(self.name, self.count, tuple(self._last))

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
            yield from _encoded(piece, limits)


def _encoded(columns: Columns, limits: Welcome | None) -> Iterator[tuple[int, bytes]]:
    """One body, or several halves when keys and headers made it too large."""
    count, body = len(columns.values), encode(columns)
    bytes_max = limits.batch_bytes_max if limits else 8 * BATCH_BYTES
    if len(body) <= bytes_max:
        yield count, body
    elif count == 1:
        if limits:
            check_size(len(columns.values[0]), limits.message_bytes_max)
        raise MessageTooLarge(
            f"A message with key and headers has {len(body)} bytes, above batch_bytes_max ({bytes_max}): split it, or "
            "raise that setting of the broker."
        )
    else:
        for where in (slice(0, count // 2), slice(count // 2, None)):
            yield from _encoded(cut(columns, where), limits)


class Stage:
    """What one attempt to write has stored, not yet visible. Made by `Bus.stage`."""

    def __init__(self, bus: BlockingShell, core: Core, query: str, batch: int, name: str, sink: str) -> None:
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

    def __init__(self, bus: AwaitingShell, core: Core, query: str, batch: int, name: str, sink: str) -> None:
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
    name, named = core.client_id, _all_of(stages, StageName)
    check_name(query)
    until_ms = core.deadline_ms(0.0 if wait is None else wait)
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
    name, named = core.client_id, _all_of(stages, str)
    done = yield from ask(core, lambda number, epoch: Discard(number, name, epoch, named), DiscardDone)
    return done.count


def _all_of(given: Sequence[N], kind: type[N]) -> tuple[N, ...]:
    if not isinstance(given, Sequence) or isinstance(given, str) or not all(isinstance(each, kind) for each in given):
        raise InvalidRequest(f"Stages are a list, each of it a {kind.__name__}, and this is {given!r}.")
    return tuple(given)


class Stages(BlockingPart):
    """The part of a bus that writes for those who are repeated when they fail."""

    def stage(self, query: str, batch: int, name: str, sink: str = "") -> Stage:
        """A place for the messages of one attempt to write a query's batch, where nobody sees them before `publish`.

        `name` is the attempt's own: one that is repeated takes another. A query that writes the same batch to several
        places names each of them, by a topic say, as its `sink`: each has batches of its own.

        >>> import tempfile, tidings
        >>> with tidings.open(tempfile.mkdtemp(), client_id="alice") as bus:
        ...     for attempt in ("first", "second"):  # The batch is written twice, and published once.
        ...         stage = bus.stage("import", 7, attempt)
        ...         stage.write("news", [b"one", b"two"])
        ...         done = bus.publish("import", 7, [stage.finish()])
        ...         print(done.repeated, bus.topic("news").count)
        False 2
        True 2
        """
        return Stage(self, self._core, query, batch, name, sink)

    def publish(
        self,
        query: str,
        batch: int,
        stages: Sequence[StageName],
        once: bool = False,
        wait: float = 0.0,
        sink: str = "",
    ) -> PublishDone:
        """Makes finished stages visible, all or none, unless this batch of the query has been published before.

        `once` says that the query has no other batch, so that it need not be remembered for long. What is refused as
        Overloaded is tried again for `wait` seconds.
        """
        return self.perform(publish(self._core, query, batch, stages, once, wait, sink))

    def discard(self, stages: Sequence[str]) -> int:
        """Drops stages by their names, without touching what is published; how many were there."""
        return self.perform(discard(self._core, stages))


class AsyncStages(AwaitingPart):
    """The same, awaited."""

    def stage(self, query: str, batch: int, name: str, sink: str = "") -> AsyncStage:
        """A place for the messages of one attempt to write a query's batch, where nobody sees them before `publish`."""
        return AsyncStage(self, self._core, query, batch, name, sink)

    async def publish(
        self,
        query: str,
        batch: int,
        stages: Sequence[StageName],
        once: bool = False,
        wait: float = 0.0,
        sink: str = "",
    ) -> PublishDone:
        """Makes finished stages visible, all or none, unless this batch of the query has been published before."""
        return await self.perform(publish(self._core, query, batch, stages, once, wait, sink))

    async def discard(self, stages: Sequence[str]) -> int:
        """Drops stages by their names, without touching what is published; how many were there."""
        return await self.perform(discard(self._core, stages))
