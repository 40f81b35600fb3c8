"""The door for editors and subscribers on plain TCP sockets; `fields` has the protocol, `delivery` the way back.

One thread runs one event loop for all connections. It is a client of the bus like any other: what an editor publishes
is an ordinary message of an ordinary topic, and a subscriber gets what anybody put there. The protocol knows no keys,
so the door is on loopback, or serves only the networks that its settings name.

Beside a member of a replica group it goes where the leader is, as any client does. While nobody leads, requests wait;
a text of which nobody can say whether it is kept is not answered at all.

A connection is one request. It is read for so long and up to so many bytes; anyone who sends too slowly, too much, or
something else costs one of a bounded number of places for that time, and ends with one line in the log. When all places
are taken the next wait in the system's queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

from tidings.client.aio import AsyncBus
from tidings.client.link import WatchedLink
from tidings.errors import Fenced, NoSuchTopic, TidingsError, Unavailable
from tidings.gateways import fields
from tidings.gateways.allowlist import Allowlist
from tidings.gateways.delivery import Address, log
from tidings.gateways.fields import Malformed, Publish, Request, RequestReader, Subscribe, Unsubscribe
from tidings.gateways.subscribers import Subscribers, open_session
from tidings.settings import SocketsSettings
from tidings.settings.broker import SOCKETS_NAME

QUEUED_CONNECTIONS_MAX = 512
"""Connections that the system keeps for us until there is a place for them."""
GRACE_S = 2.0
"""How long requests and deliveries under way are given when the door closes."""
DRAINED_BYTES_MAX = 64 * 1024
DRAINING_S = 0.5
"""What a sender of nonsense may still send, so that our answer reaches it before the connection ends."""
ACCEPT_PAUSE_S = 0.1
"""After an accept that failed, for instance because the process has no file descriptors left."""


class SocketDoor:
    """The door: bound when it is made, served by a thread between `start` and `closed`."""

    def __init__(self, settings: SocketsSettings) -> None:
        assert settings.sockets_port is not None
        self._settings = settings
        self._allowed = Allowlist("sockets", settings.sockets_allow)
        self._name = SOCKETS_NAME
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind((settings.sockets_host, settings.sockets_port))
            self._listener.listen(QUEUED_CONNECTIONS_MAX)
            self._listener.setblocking(False)
        except OSError as error:
            self._listener.close()
            raise Unavailable(
                f"The door for sockets cannot listen on {settings.sockets_host}:{settings.sockets_port} "
                f"({error.strerror}): stop who has it, or give --sockets another port."
            ) from error
        self.address = Address(*self._listener.getsockname())
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._stop_asked = False
        self.closed = False
        """Whether the thread has done its last."""

    def name_after(self, node: str) -> None:
        """Other nodes have gateways too: this one and its subscribers have the node's address in their names."""
        self._name = f"{SOCKETS_NAME}/{node}"

    def start(self, link: Callable[[], WatchedLink], on_closed: Callable[[], None]) -> None:
        """Starts the thread; the broker that `link` leads to must be about to answer."""
        self._thread = threading.Thread(target=self._run, args=(link, on_closed), name="tidings-sockets", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Asks the door to close; may be called from any thread, and again."""
        if not self._stop_asked:
            self._stop_asked = True
            if self._loop is not None and self._end is not None:
                with contextlib.suppress(RuntimeError):  # It has closed meanwhile.
                    self._loop.call_soon_threadsafe(self._end.set)

    def check(self) -> None:
        """Raises what the door could not go on after."""
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> SocketDoor:
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.close()

    def _run(self, link: Callable[[], WatchedLink], on_closed: Callable[[], None]) -> None:
        try:
            asyncio.run(self._serve(link))
        except BaseException as error:  # noqa: BLE001 - `check` raises it where somebody looks
            self._failure = error
        finally:
            self._listener.close()
            self.closed = True
            on_closed()

    async def _serve(self, link: Callable[[], WatchedLink]) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        if self._stop_asked:
            self._end.set()
        end = asyncio.create_task(self._end.wait())
        opening = asyncio.create_task(Office.open(link, self._name, self._allowed, self._settings))
        await asyncio.wait([opening, end], return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():  # Nobody leads the group yet.
            opening.cancel()
            await asyncio.wait([opening])
            return
        office = opening.result()
        reception = asyncio.create_task(self._receive(office))
        waits: list[asyncio.Future[Any]] = [reception, office.broken, end]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.wait(waits)
            await office.close()
        for ended in (reception, office.broken):
            if not ended.cancelled():
                ended.result()

    async def _receive(self, office: Office) -> None:
        """Takes connections, as long as there is a place for them."""
        loop = asyncio.get_running_loop()
        places = asyncio.Semaphore(self._settings.sockets_connections_max)
        served: set[asyncio.Task[None]] = set()
        reading: set[asyncio.Task[None]] = set()
        try:
            while True:
                await places.acquire()
                try:
                    connection, (ip, port) = await loop.sock_accept(self._listener)
                except OSError as error:
                    places.release()
                    log.warning("sockets: a connection could not be taken (%s)", error)
                    await asyncio.sleep(ACCEPT_PAUSE_S)
                    continue
                if not self._allowed.lets_in(ip):
                    connection.close()
                    places.release()
                    continue
                task = asyncio.create_task(self._attend(office, connection, Address(ip, port), reading))
                served.add(task)
                reading.add(task)
                task.add_done_callback(reading.discard)
                task.add_done_callback(served.discard)
                task.add_done_callback(office.note)
                task.add_done_callback(lambda _: places.release())
        finally:
            for task in reading:  # What is not a request yet is not waited for.
                task.cancel()
            if served:
                _, late = await asyncio.wait(served, timeout=GRACE_S)
                for task in late:
                    task.cancel()

    async def _attend(
        self, office: Office, connection: socket.socket, caller: Address, reading: set[asyncio.Task[None]]
    ) -> None:
        """One connection from its request to its end; in `reading` until the request is there."""
        loop = asyncio.get_running_loop()
        with connection:
            try:
                request = await self._read(connection)
            except Malformed as error:
                log.warning("sockets: %s was cut off: %s", caller, error)
                if error.answer is not None:
                    await self._answer_nonsense(connection, error.answer)
                return
            except OSError as error:
                log.warning("sockets: %s was lost before its request was complete (%s)", caller, error)
                return
            task = asyncio.current_task()
            assert task is not None
            reading.discard(task)
            code, begin = await office.handle(request, caller)
            try:
                # A plain editor has closed its end by now and asks for no answer.
                if code is not None:
                    with contextlib.suppress(OSError):
                        await loop.sock_sendall(connection, fields.encode(code))
            finally:
                begin()

    async def _read(self, connection: socket.socket) -> Request:
        loop = asyncio.get_running_loop()
        reader = RequestReader()
        seconds = self._settings.sockets_request_ms / 1000
        try:
            async with asyncio.timeout(seconds):
                while True:
                    data = await loop.sock_recv(connection, fields.REQUEST_BYTES_MAX)
                    if not data:
                        raise Malformed("it ended before its request was complete")
                    if reader.feed(data):
                        return fields.parse(reader.fields)
        except TimeoutError:
            raise Malformed(f"its request was not complete after {seconds:g} s") from None

    async def _answer_nonsense(self, connection: socket.socket, code: int) -> None:
        """Says no, and reads on for a moment: a connection closed with bytes unread would take the answer with it."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            async with asyncio.timeout(DRAINING_S):
                await loop.sock_sendall(connection, fields.encode(code))
                connection.shutdown(socket.SHUT_WR)
                drained = 0
                while drained < DRAINED_BYTES_MAX and (data := await loop.sock_recv(connection, 4096)):
                    drained += len(data)


class Office:
    """What the door does with a request: the door's own session on the bus, and the subscribers."""

    def __init__(
        self,
        link: Callable[[], WatchedLink],
        name: str,
        bus: AsyncBus,
        allowed: Allowlist,
        settings: SocketsSettings,
    ) -> None:
        self._link = link
        self._name = name
        self._bus = bus
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done with the error when something has happened that must not."""
        self._subscribers = Subscribers(link, name, allowed, settings, self._break)
        self._reopening = asyncio.Lock()

    @classmethod
    async def open(
        cls, link: Callable[[], WatchedLink], name: str, allowed: Allowlist, settings: SocketsSettings
    ) -> Office:
        """Opens the session, and goes on with the subscribers that the bus knows, once the group has a leader."""
        while True:
            try:
                bus = await open_session(link, name, anonymous=False)
            except Unavailable as error:
                log.warning("sockets: the broker does not answer yet: %s", error)
                continue
            office = cls(link, name, bus, allowed, settings)
            try:
                await office._subscribers.resume(list(await bus.subscribers()))
                return office
            except (Fenced, Unavailable):  # Somebody else uses the door's own name: it takes it back.
                await office.close()
            except BaseException:
                await office.close()
                raise

    async def handle(self, request: Request, caller: Address) -> tuple[int | None, Callable[[], None]]:
        """Does what a request asks: the code to answer with, and what is to be done once it was answered.

        None says that nobody knows what has become of it.
        """
        bus = self._bus
        try:
            match request:
                case Publish(topic, text):
                    await bus.put(topic, text)
                    return fields.DONE, _nothing
                case Subscribe(topic, port):
                    await bus.topic(topic)  # Whatever the topic policy is, here a subscribe makes no topic.
                    return fields.DONE, await self._subscribers.subscribe(Address(caller.ip, port), topic)
                case Unsubscribe(topic, port):
                    await bus.topic(topic)
                    ended = await self._subscribers.unsubscribe(Address(caller.ip, port), topic)
                    return fields.DONE if ended else fields.NOT_SUBSCRIBED, _nothing
        except TidingsError as error:
            refused = fields.NO_TOPIC if isinstance(request, Unsubscribe) else fields.REFUSED
            if isinstance(request, Publish) or not isinstance(error, NoSuchTopic):
                log.warning("sockets: %s was refused: %s", caller, error)
            if isinstance(error, Fenced):
                await self._reopen(bus)
            return None if isinstance(error, Unavailable) else refused, _nothing

    async def close(self) -> None:
        """Ends the deliveries and the sessions; the subscriptions stay on the bus."""
        await self._subscribers.close(GRACE_S)
        await self._bus.close()

    def note(self, task: asyncio.Task[None]) -> None:
        """A connection has been served; an error that nobody expected is the end of the door."""
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._break(failure)

    def _break(self, failure: BaseException) -> None:
        if not self.broken.done():
            self.broken.set_exception(failure)

    async def _reopen(self, fenced: AsyncBus) -> None:
        """Somebody else has used the door's own name: it takes it back."""
        async with self._reopening:
            if self._bus is fenced:
                self._bus = await open_session(self._link, self._name, anonymous=False)
                await fenced.close(bye=False)


def _nothing() -> None:
    """Most requests are over with their answer."""
