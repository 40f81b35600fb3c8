"""Publishing under a name of its own, so that it can be gone on with after a crash, exactly once.

A name's sequence numbers count what each topic has taken from it. A program that reads its messages from a
file, say, asks for `last_sequence` at its start and skips so many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from tidings.client import filling, operations
from tidings.client.operations import Core, Operation, Until
from tidings.client.request import Identity
from tidings.client.rows import Value
from tidings.client.shells import AwaitingShell, BlockingShell
from tidings.client.soon import AsyncSoon, Background, Soon, say_or_note
from tidings.errors import InvalidRequest, TidingsError
from tidings.message import Receipt, Receipts

if TYPE_CHECKING:
    from tidings.client.async_soon import AsyncBackground


def end(core: Core, who: Identity) -> Operation[None]:
    """Waits for what the name has put, then ends its session; a bus's own name lives on."""
    deadline_ms = core.now_ms() + core.session.settings.timeout_ms
    yield Until(lambda: who.outbox.idle, deadline_ms)
    if who is core.session.main or core.session.identities.get(who.name) is not who:
        return
    if who.epoch and who.fenced is None and who.greeting is None:
        said = operations.say_bye(core, who)
        yield Until(lambda: said.done, deadline_ms)
    core.session.identities.pop(who.name, None)


class Named:
    """What every publisher knows: its name, and whether it is closed."""

    def __init__(self, core: Core, identity: Identity) -> None:
        self._core = core
        self._identity = identity
        self._closed = False

    @property
    def name(self) -> str:
        """The name that is published under."""
        return self._identity.name

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRequest(f"The publisher {self.name!r} is closed: make another with bus.publisher.")


class Publisher(Named):
    """`with bus.publisher("import-7") as publisher:` - see `Bus.publisher`."""

    def __init__(self, bus: BlockingShell, core: Core, identity: Identity, background: Background) -> None:
        super().__init__(core, identity)
        self._bus = bus
        self._background = background

    @overload
    def put(
        self,
        topic: str,
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
        sequence: int | None = None,
    ) -> Receipt: ...
    @overload
    def put(
        self,
        topic: list[str] | tuple[str, ...],
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
        sequence: int | None = None,
    ) -> list[Receipt]: ...
    def put(
        self,
        topic: str | list[str] | tuple[str, ...],
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
        sequence: int | None = None,
    ) -> Receipt | list[Receipt]:
        """Stores one message; with `sequence` exactly as that number, a repetition being answered as such."""
        self._check_open()
        found: Receipt | list[Receipt] = self._bus.perform(
            operations.put(self._core, topic, value, key, headers, id, sequence, self._identity)
        )
        return found

    @overload
    def put_soon(
        self,
        topic: str,
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
        sequence: int | None = None,
    ) -> Soon[Receipt]: ...
    @overload
    def put_soon(
        self,
        topic: list[str] | tuple[str, ...],
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
        sequence: int | None = None,
    ) -> Soon[list[Receipt]]: ...
    def put_soon(
        self,
        topic: str | list[str] | tuple[str, ...],
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
        sequence: int | None = None,
    ) -> Soon[Any]:
        """Like put, without waiting for the answer: see `put_soon` of the bus."""
        self._check_open()
        put = self._background.soons.put(self._identity, topic, value, key, headers, id, sequence)
        soon = self._background.perform(put, soon=True)
        if self._background.tending is None:
            self._background.begin()
        return soon

    def flush(self) -> None:
        """Waits for every put_soon of this publisher; raises the first error that nobody has seen."""
        self._background.flush(self._identity)

    def put_many(
        self,
        topic: str,
        values: Iterable[Value],
        keys: Iterable[Value | None] | None = None,
        wait: float | None = None,
        headers: Iterable[Mapping[str, Value] | None] | None = None,
        ids: Iterable[str | None] | None = None,
    ) -> Receipts:
        """Stores many messages."""
        self._check_open()
        return self._bus.perform(filling.put_many(self._core, topic, values, keys, self._identity, wait, headers, ids))

    def last_sequence(self, topic: str) -> int:
        """How many messages the topic has taken from this name; 0 when there was none."""
        self._check_open()
        return self._bus.perform(operations.last_sequence(self._core, topic, self._identity))

    def close(self) -> None:
        """Waits for what was put with put_soon, and ends the name's session; raises what `flush` would."""
        if self._closed or self._bus.lost:
            return
        self._closed = True
        try:
            self.flush()
        finally:
            self._bus.perform(end(self._core, self._identity))

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except TidingsError as unsent:
            say_or_note(unsent, error)


class AsyncPublisher(Named):
    """`async with bus.publisher("import-7") as publisher:` - the same, awaited."""

    def __init__(self, bus: AwaitingShell, core: Core, identity: Identity, background: AsyncBackground) -> None:
        super().__init__(core, identity)
        self._bus = bus
        self._background = background

    @overload
    async def put(
        self,
        topic: str,
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
        sequence: int | None = None,
    ) -> Receipt: ...
    @overload
    async def put(
        self,
        topic: list[str] | tuple[str, ...],
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
        sequence: int | None = None,
    ) -> list[Receipt]: ...
    async def put(
        self,
        topic: str | list[str] | tuple[str, ...],
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
        sequence: int | None = None,
    ) -> Receipt | list[Receipt]:
        """Stores one message; with `sequence` exactly as that number."""
        self._check_open()
        found: Receipt | list[Receipt] = await self._bus.perform(
            operations.put(self._core, topic, value, key, headers, id, sequence, self._identity)
        )
        return found

    @overload
    async def put_soon(
        self,
        topic: str,
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
        sequence: int | None = None,
    ) -> AsyncSoon[Receipt]: ...
    @overload
    async def put_soon(
        self,
        topic: list[str] | tuple[str, ...],
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
        sequence: int | None = None,
    ) -> AsyncSoon[list[Receipt]]: ...
    async def put_soon(
        self,
        topic: str | list[str] | tuple[str, ...],
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
        sequence: int | None = None,
    ) -> AsyncSoon[Any]:
        """Like put, without waiting for the answer: see `put_soon` of the bus."""
        self._check_open()
        put = self._background.soons.put(self._identity, topic, value, key, headers, id, sequence)
        return await self._background.hand_over(put)

    async def flush(self) -> None:
        """Waits for every put_soon of this publisher; raises the first error that nobody has seen."""
        await self._background.flush(self._identity)

    async def put_many(
        self,
        topic: str,
        values: Iterable[Value],
        keys: Iterable[Value | None] | None = None,
        wait: float | None = None,
        headers: Iterable[Mapping[str, Value] | None] | None = None,
        ids: Iterable[str | None] | None = None,
    ) -> Receipts:
        """Stores many messages."""
        self._check_open()
        return await self._bus.perform(
            filling.put_many(self._core, topic, values, keys, self._identity, wait, headers, ids)
        )

    async def last_sequence(self, topic: str) -> int:
        """How many messages the topic has taken from this name; 0 when there was none."""
        self._check_open()
        return await self._bus.perform(operations.last_sequence(self._core, topic, self._identity))

    async def close(self) -> None:
        """Waits for what was put with put_soon, and ends the name's session; raises what `flush` would."""
        if self._closed or self._bus.lost:
            return
        self._closed = True
        try:
            await self.flush()
        finally:
            await self._bus.perform(end(self._core, self._identity))

    async def __aenter__(self) -> AsyncPublisher:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except TidingsError as unsent:
            say_or_note(unsent, error)
