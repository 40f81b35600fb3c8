"""The web service at its door: HTTP/1.1, in a thread of its own.

h11 reads and writes the protocol, asyncio the sockets, `tidings.gateways.spelling` has the answers. Everything that a
client could make large or slow has a bound in `Limits`: a request must have arrived whole, and its answer been taken,
within a time, however cleverly its bytes are dripped; a connection too many is told so and closed. It has no keys, so
it is bound to loopback, or serves only the networks that the operator has named.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import http
import socket
import threading
from collections.abc import Callable, Sequence
from types import TracebackType

import h11

from tidings.errors import InvalidRequest, Unavailable
from tidings.gateways.allowlist import Allowlist
from tidings.gateways.spelling import BODY_BYTES_MAX, Answer, answer, refusal

HOST = "127.0.0.1"
READ_BYTES = 16_384


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a client may ask of the service."""

    connections_max: int = 32
    request_seconds: float = 10.0
    """For a request to arrive whole; also how long a connection may stay without one."""
    answer_seconds: float = 10.0
    """For an answer to be taken."""
    head_bytes_max: int = 65_536
    """The address and the headers of a request; what is read at once may go beyond, by `READ_BYTES` at most."""
    drain_seconds: float = 1.0
    """How long what a refused client still sends is thrown away, so that it can read why it was refused."""
    stop_seconds: float = 2.0
    """How long requests that are being answered hold up the end."""


class WebService:
    """The service on a port; it is bound at once and answers between `start` and `close`.

    >>> import urllib.request
    >>> with WebService(port=0) as web:
    ...     web.start()
    ...     urllib.request.urlopen(f"{web.address}/health").read()
    b'{"status":"ok"}'
    """

    def __init__(
        self, port: int, limits: Limits | None = None, host: str | None = None, allow: Sequence[str] = ()
    ) -> None:
        self._limits = limits or Limits()
        self._allowed = Allowlist("http", allow)
        self._socket = _bound(host or HOST, port)
        self.address = f"http://{host or HOST}:{self._socket.getsockname()[1]}"
        self._connections: set[asyncio.Task[None]] = set()
        self._idle: set[asyncio.Task[None]] = set()
        """Those of the connections that wait for a request, and so can be ended at any time."""
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Answers from now on."""
        self._thread = threading.Thread(target=self._run, name="tidings-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Takes no more requests, ends those that are being answered, and waits for that. Twice is as good as once."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
            self._thread = None
        self._loop.close()
        self._socket.close()

    def __enter__(self) -> WebService:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._on_connection, sock=self._socket)
        await self._stop.wait()
        server.close()
        for task in self._idle:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections, timeout=self._limits.stop_seconds)
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await asyncio.sleep(0)  # What was closed just now is gone after one more round of the loop.

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        if self._stop.is_set() or peer is None or not self._allowed.lets_in(peer[0]):
            writer.close()  # It had been let in when the door was closed, has left, or is a stranger.
            return
        if len(self._connections) >= self._limits.connections_max:
            # So short an answer always finds room in a new socket: nothing is left to wait for.
            crowd = refusal(429, "There are too many connections: try again in a moment.")
            writer.write(_encoded(h11.Connection(h11.SERVER), crowd, last=True))
            writer.close()
            return
        task = self._loop.create_task(self._converse(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves a connection until either side has had enough."""
        writer.transport.set_write_buffer_limits(high=0)  # Now `drain` waits until everything has been taken.
        conversation = Conversation(reader, writer, self._limits)
        task = asyncio.current_task()
        assert task is not None
        try:
            going_on = True
            while going_on and not self._stop.is_set():
                self._idle.add(task)
                going_on = await conversation.exchange(lambda: self._idle.discard(task))
        except OSError:
            pass  # The client has gone, or does not take its answer in time.
        finally:
            self._idle.discard(task)
            writer.transport.abort()  # What is still unsent nobody takes: it must not keep the socket open.
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class Refused(Exception):
    """A request that is answered without being read to its end."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class Conversation:
    """One connection: requests come in, answers go out, one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: Limits) -> None:
        self._reader = reader
        self._writer = writer
        self._limits = limits
        self._connection = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes_max)
        self._method = b""
        """Of the request that is being read or answered."""

    async def exchange(self, on_begun: Callable[[], None]) -> bool:
        """One request and its answer; whether there may be another. `on_begun` is called once bytes have come."""
        begun = False

        def begin() -> None:
            nonlocal begun
            begun = True
            on_begun()

        try:
            async with asyncio.timeout(self._limits.request_seconds):
                request = await self._request(begin)
            if request is None:
                return False
            reply = answer(*request)
        except TimeoutError:
            if not begun:
                return False
            reply = refusal(408, f"The request took longer than {self._limits.request_seconds:g} seconds to arrive.")
        except Refused as refused:
            reply = refused.answer
        except h11.RemoteProtocolError as error:
            # 501 is how h11 calls a transfer encoding that nobody uses; the fault is the client's all the same.
            status = error.error_status_hint if error.error_status_hint < 500 else 400
            reply = refusal(status, f"This is not a request in HTTP/1.1 ({error}).")
        return await self._reply(reply)

    async def _request(self, begin: Callable[[], None]) -> tuple[str, str, str, bytes] | None:
        """Method, target, content type and body of the next request, or None if the client has left."""
        request: h11.Request | None = None
        body = bytearray()
        room = self._limits.head_bytes_max + BODY_BYTES_MAX  # For what a body costs in chunks, too.
        if self._connection.trailing_data[0]:
            begin()
        while True:
            event = self._connection.next_event()
            if event is h11.NEED_DATA:
                if self._connection.they_are_waiting_for_100_continue:
                    go_on = h11.InformationalResponse(status_code=100, headers=[])
                    self._writer.write(self._connection.send(go_on) or b"")
                data = await self._reader.read(READ_BYTES)
                if data:
                    begin()
                room -= len(data)
                self._connection.receive_data(data)
            elif isinstance(event, h11.Request):
                request, self._method = event, event.method
                if int(_header(request, b"content-length") or 0) > BODY_BYTES_MAX:
                    raise _too_large()
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert request is not None
                content_type = _header(request, b"content-type").decode("latin-1")
                return request.method.decode(), request.target.decode(), content_type, bytes(body)
            else:
                assert isinstance(event, h11.ConnectionClosed)
                return None
            if room < 0 or len(body) > BODY_BYTES_MAX:
                raise _too_large()

    async def _reply(self, reply: Answer) -> bool:
        last = self._connection.their_state is not h11.DONE
        async with asyncio.timeout(self._limits.answer_seconds):
            self._writer.write(_encoded(self._connection, reply, last, self._method == b"HEAD"))
            await self._writer.drain()
        if self._connection.our_state is h11.DONE and self._connection.their_state is h11.DONE:
            self._connection.start_next_cycle()
            return True
        if last:
            await self._drain()
        return False

    async def _drain(self) -> None:
        """Closing on unread bytes would reset the connection, and the client might never see its answer."""
        self._writer.write_eof()
        room = BODY_BYTES_MAX
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.drain_seconds):
                while room > 0 and (data := await self._reader.read(READ_BYTES)):
                    room -= len(data)


def _encoded(connection: h11.Connection, reply: Answer, last: bool, head: bool = False) -> bytes:
    """An answer as bytes. `last` says that the connection ends with it, `head` that its body was not asked for."""
    headers = [
        ("content-type", "application/json"),
        ("content-length", str(len(reply.body))),
        ("x-content-type-options", "nosniff"),
        *reply.headers,
        *([("connection", "close")] if last else []),
    ]
    reason = http.HTTPStatus(reply.status).phrase
    events: list[h11.Event] = [h11.Response(status_code=reply.status, headers=headers, reason=reason)]
    if not head:
        events.append(h11.Data(data=reply.body))
    return b"".join(connection.send(event) or b"" for event in [*events, h11.EndOfMessage()])


def _header(request: h11.Request, name: bytes) -> bytes:
    return next((value for key, value in request.headers if key == name), b"")


def _too_large() -> Refused:
    return Refused(refusal(413, f"The body is too long: {BODY_BYTES_MAX} bytes are the limit."))


def _bound(host: str, port: int) -> socket.socket:
    assert 0 <= port <= 65_535
    try:
        return socket.create_server((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Unavailable(
                f"Port {port} of {host} is already in use: stop who has it, or give --http another."
            ) from error
        raise InvalidRequest(
            f"Port {port} of {host} cannot be bound ({error.strerror}): give --http another."
        ) from error
