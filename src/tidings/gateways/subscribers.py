"""All subscribers of the socket door: who there is, who comes, and who is dropped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine

from tidings.client.aio import AsyncBus
from tidings.client.link import WatchedLink
from tidings.errors import LimitReached, TidingsError
from tidings.gateways.allowlist import Allowlist
from tidings.gateways.delivery import Address, Subscriber, Unreachable, address_of, log
from tidings.settings import KIB, ClientSettings, SocketsSettings

PATIENT = ClientSettings(timeout_ms=5_000, retries=6, beat_ms=8_000, credit_messages=256, credit_bytes=256 * KIB)
"""A door's sessions live in the broker's own process: what takes long there is busy, not lost. What waits for a
subscriber waits on the bus, and only a little of it here."""
KNOCKS_APART_S = 1.0
"""How often, at most, it is looked who of a full house has left."""
REVIVAL_S = 1.0
"""How long a subscriber rests whose session the bus has refused."""


async def open_session(link: Callable[[], WatchedLink], client_id: str, anonymous: bool) -> AsyncBus:
    """A session of the door's own."""
    bus = AsyncBus(link(), client_id, PATIENT, anonymous=anonymous)
    try:
        await bus.start()
    except BaseException:
        await bus.close(bye=False)
        raise
    return bus


class Subscribers:
    """The subscribers, by address. What they are subscribed to is the bus's business, and is asked there."""

    def __init__(
        self,
        link: Callable[[], WatchedLink],
        name: str,
        allowed: Allowlist,
        settings: SocketsSettings,
        on_broken: Callable[[BaseException], None],
    ) -> None:
        self._link = link
        self._name = name
        """The gateway's own; those of its subscribers lie below it."""
        self._allowed = allowed
        self._settings = settings
        self._on_broken = on_broken
        self._known: dict[Address, Subscriber] = {}
        self._changing = asyncio.Lock()
        """Held by anyone who makes, changes or drops a subscriber, so that these happen one after the other."""
        self._mending: set[asyncio.Task[None]] = set()
        self._closed = False
        self._knock_at = 0.0

    async def resume(self, names: list[str]) -> None:
        """Goes on with the subscribers that an earlier life of the broker had."""
        async with self._changing:
            for name in names:
                if name.startswith(f"{self._name}/tcp://"):
                    continue  # Another node's gateway serves it.
                address = address_of(name, self._name, self._allowed)
                if address is None:
                    log.warning("sockets: %r is not the name of a subscriber, and is ignored", name)
                    continue
                try:
                    await self._open(address)
                except TidingsError as error:
                    self._revive_later(address, error)

    async def subscribe(self, address: Address, topic: str) -> Callable[[], None]:
        """Subscribes to a topic that exists. What it returns starts the deliveries, once the subscriber was told."""
        async with self._changing:
            subscriber = self._known.get(address)
            if subscriber is None:
                if len(self._known) >= self._settings.sockets_subscribers_max:
                    await self._make_room()
                if len(self._known) >= self._settings.sockets_subscribers_max:
                    raise LimitReached(
                        f"There are {len(self._known)} subscribers (sockets_subscribers_max): raise the limit."
                    )
                subscriber = await self._open(address)
            try:
                if not subscriber.has(topic):
                    await subscriber.subscribe(topic)
            finally:
                if subscriber.idle:
                    await self._drop(subscriber)
            return lambda: subscriber.begin(topic)

    async def unsubscribe(self, address: Address, topic: str) -> bool:
        """Ends a subscription; whether there was one."""
        async with self._changing:
            subscriber = self._known.get(address)
            if subscriber is None or not subscriber.has(topic):
                return False
            await subscriber.unsubscribe(topic)
            if subscriber.idle:
                await self._drop(subscriber)
            return True

    async def close(self, grace_s: float) -> None:
        """Ends all deliveries; the subscriptions stay on the bus."""
        self._closed = True
        for task in self._mending:
            task.cancel()
        await asyncio.gather(*self._mending, return_exceptions=True)
        await asyncio.gather(*(each.close(forget=False, grace_s=grace_s) for each in self._known.values()))
        self._known.clear()

    async def _open(self, address: Address) -> Subscriber:
        bus = await open_session(self._link, address.client_id(self._name), anonymous=True)
        subscriber = Subscriber(address, bus, self._settings, self._on_failed)
        try:
            await subscriber.resume()
        except BaseException:
            await subscriber.close(forget=False)
            raise
        self._known[address] = subscriber
        return subscriber

    async def _drop(self, subscriber: Subscriber) -> None:
        """Forgets a subscriber, here and on the bus."""
        del self._known[subscriber.address]
        await subscriber.close(forget=True)

    async def _make_room(self) -> None:
        """Drops anyone who has left without a word. A delivery would show that, but there may be none for days."""
        now = time.monotonic()
        if now < self._knock_at:
            return
        self._knock_at = now + KNOCKS_APART_S
        known = list(self._known.values())
        for subscriber, gone in zip(known, await asyncio.gather(*(each.is_gone() for each in known)), strict=True):
            if gone:
                log.warning("sockets: %s is gone and is dropped, to make room for another", subscriber.address)
                await self._drop(subscriber)

    # When something fails.

    def _on_failed(self, subscriber: Subscriber) -> None:
        """A subscriber's deliveries have ended in a way that they should not."""
        self._start(self._mend(subscriber))

    def _revive_later(self, address: Address, error: TidingsError) -> None:
        log.warning("sockets: the session of %s is opened again soon, after: %s", address, error)
        self._start(self._revive(address))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        if self._closed:
            work.close()
            return
        task = asyncio.create_task(work)
        self._mending.add(task)
        task.add_done_callback(self._on_mended)

    def _on_mended(self, task: asyncio.Task[None]) -> None:
        self._mending.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._on_broken(failure)

    async def _mend(self, subscriber: Subscriber) -> None:
        failure = subscriber.failure
        assert failure is not None
        async with self._changing:
            if self._known.get(subscriber.address) is not subscriber:
                return
            if isinstance(failure, Unreachable):
                log.warning(
                    "sockets: %s could not be reached for %g s (%s) and is dropped, with its waiting messages",
                    subscriber.address,
                    self._settings.sockets_refusal_ms_max / 1000,
                    failure,
                )
                await self._drop(subscriber)
            elif isinstance(failure, TidingsError):
                del self._known[subscriber.address]
                await subscriber.close(forget=False)
                self._revive_later(subscriber.address, failure)
            else:
                raise failure

    async def _revive(self, address: Address) -> None:
        """Opens a session again that the bus has refused, however often it takes."""
        await asyncio.sleep(REVIVAL_S)
        async with self._changing:
            if address not in self._known:
                try:
                    await self._open(address)
                except TidingsError as error:
                    self._revive_later(address, error)
