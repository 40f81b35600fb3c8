"""A bus that is being opened: `async with tidings.aconnect(...) as bus`, and `bus = await tidings.aconnect(...)`."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidings.client.aio import AsyncBus


class Opening(Coroutine[Any, Any, "AsyncBus"]):
    """A coroutine that gives the bus, and a block at whose end the bus is closed."""

    def __init__(self, steps: Coroutine[Any, Any, AsyncBus]) -> None:
        self._steps = steps
        self._bus: AsyncBus | None = None

    def __await__(self) -> Generator[Any, None, AsyncBus]:
        return self._steps.__await__()

    def send(self, value: Any, /) -> Any:
        return self._steps.send(value)

    def throw(self, *error: Any) -> Any:
        return self._steps.throw(*error)

    def close(self) -> None:
        self._steps.close()

    async def __aenter__(self) -> AsyncBus:
        self._bus = await self._steps
        return self._bus

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._bus is not None
        await self._bus.__aexit__(kind, error, trace)
