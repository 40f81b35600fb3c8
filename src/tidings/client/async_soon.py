"""The puts of an awaiting bus that nobody waits for: see `soon`. Its event loop sends them, so there is no thread."""

from __future__ import annotations

from typing import Any

from tidings.client.async_driver import AsyncDriver
from tidings.client.operations import Core, Operation
from tidings.client.request import Identity
from tidings.client.soon import AsyncSoon, Soons, raise_first, say_what_is_lost, unfinished
from tidings.errors import TidingsError


class AsyncBackground:
    """Everything that one bus has put with `put_soon`."""

    def __init__(self, driver: AsyncDriver, core: Core) -> None:
        self._driver = driver
        self.soons: Soons[AsyncSoon[Any]] = Soons(core, AsyncSoon)

    async def hand_over(self, put: Operation[AsyncSoon[Any]]) -> AsyncSoon[Any]:
        """Runs one put of `soons`."""
        soon = await self._driver.perform(put)
        unfinished[self] = None
        await self._driver.give_way()
        return soon

    async def flush(self, *identities: Identity | None) -> None:
        """Waits for everything, or for what these names have put; raises the first error that nobody has seen."""
        errors: list[TidingsError] = []
        for soon in await self._driver.perform(self.soons.left(*identities)):
            try:
                await soon.result()
            except TidingsError as error:
                errors.append(error)
        raise_first(errors)

    def stop(self) -> None:
        """The bus is about to be closed."""
        unfinished.pop(self, None)

    def finish(self) -> None:
        """The same for the end of a program; its event loop has mostly ended before."""
        self.stop()
        if not self._driver.closed:
            say_what_is_lost(self._driver.perform_outside, self.soons)
