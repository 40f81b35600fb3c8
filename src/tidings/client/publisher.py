"""Publishing under a name of its own, so that it can be gone on with after a crash, exactly once.

A name's sequence numbers count what each topic has taken from it. A program that reads its messages from a
file, say, asks for `last_sequence` at its start and skips so many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tidings.client import filling, operations
from tidings.client.operations import Core, Operation, Until
from tidings.client.request import Identity
from tidings.client.rows import Value
from tidings.errors import InvalidRequest
from tidings.message import Receipt, Receipts

if TYPE_CHECKING:
    from tidings.client.aio import AsyncBus
    from tidings.client.bus import Bus


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


class Publisher:
    """`with bus.publisher("import-7") as publisher:` - see `Bus.publisher`."""

    def __init__(self, bus: Bus, core: Core, identity: Identity) -> None:
        self._bus = bus
        self._core = core
        self._identity = identity
        self._closed = False

    @property
    def name(self) -> str:
        """The name that is published under."""
        return self._identity.name

    def put(
        self,
        topic: str | Iterable[str],
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
        sequence: int | None = None,
    ) -> Receipt:
        """Stores one message; with `sequence` exactly as that number, a repetition being answered as such."""
        self._check_open()
        found: Receipt = self._bus.perform(
            operations.put(self._core, topic, value, key, headers, id, sequence, self._identity)
        )
        return found

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
        """Ends the name's session."""
        if not self._closed and not self._bus.lost:
            self._closed = True
            self._bus.perform(end(self._core, self._identity))

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRequest(f"The publisher {self.name!r} is closed: make another with bus.publisher.")

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class AsyncPublisher:
    """`async with bus.publisher("import-7") as publisher:` - the same, awaited."""

    def __init__(self, bus: AsyncBus, core: Core, identity: Identity) -> None:
        self._bus = bus
        self._core = core
        self._identity = identity

    @property
    def name(self) -> str:
        """The name that is published under."""
        return self._identity.name

    async def put(
        self,
        topic: str | Iterable[str],
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
        sequence: int | None = None,
    ) -> Receipt:
        """Stores one message; with `sequence` exactly as that number."""
        found: Receipt = await self._bus.perform(
            operations.put(self._core, topic, value, key, headers, id, sequence, self._identity)
        )
        return found

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
        return await self._bus.perform(
            filling.put_many(self._core, topic, values, keys, self._identity, wait, headers, ids)
        )

    async def last_sequence(self, topic: str) -> int:
        """How many messages the topic has taken from this name; 0 when there was none."""
        return await self._bus.perform(operations.last_sequence(self._core, topic, self._identity))

    async def close(self) -> None:
        """Ends the name's session."""
        if not self._bus.lost:
            await self._bus.perform(end(self._core, self._identity))

    async def __aenter__(self) -> AsyncPublisher:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()
