"""The clients at a node's door: by which ways their requests go, and which streams they have where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tidings.node.ring.apart_streams import ApartStream
from tidings.protocols.broker.messages import AnyAnswer, AnyRequest, Hello
from tidings.wire.codec import Frame

CONNECTIONS_MAX = 100_000
BROKEN_MAX = 100_000
HELD_MAX = 1_000
HELD_BYTES_MAX = 64 * 1024 * 1024
SILENCE_MS_MAX = 120_000
"""A connection over which nothing came for this long is forgotten; it is a new one when it speaks again."""


class Waiting(NamedTuple):
    """A request that waits until it is known who owns what it is about."""

    request: AnyRequest
    frames: list[Frame]
    user: str | None
    since_ms: int


class Question:
    """A question to several groups, for one client: the numbers under which each was asked, and what they said."""

    def __init__(self, request: AnyRequest, until_ms: int | None = None, welcome: bytes | None = None) -> None:
        self.request = request
        self.until_ms = until_ms
        """When it is answered with what has been said by then; None if all have to answer."""
        self.welcome = welcome
        """What the client gets when all others have been told of its new epoch, if that is what it is about."""
        self.open: dict[int, None] = {}
        self.answers: list[AnyAnswer] = []
        self.steps: Sequence[Any] = ()
        """What is asked one after the other, each when the one before has been answered."""
        self.user: str | None = None


class ClientConnection:
    """One connection of a client."""

    __slots__ = (
        "apart",
        "asking",
        "commit",
        "goes_on",
        "greeting",
        "groups",
        "heard_ms",
        "held",
        "held_bytes",
        "missing",
        "number",
        "paths",
        "peer",
        "puts",
        "reads",
        "streams",
    )

    def __init__(self, number: int, peer: Any, now_ms: int) -> None:
        self.number = number
        self.peer = peer
        self.heard_ms = now_ms
        self.paths: dict[bytes, str] = {}
        """group -> the leader to which this connection's requests go. It never changes: requests would overtake."""
        self.groups: dict[str, dict[bytes, None]] = {}
        """name -> the groups that have heard of it over this connection."""
        self.streams: dict[int, dict[bytes, None]] = {}
        """stream -> the groups that serve it."""
        self.apart: dict[int, ApartStream] = {}
        """Streams whose topics may have several owners."""
        self.reads: dict[int, tuple[str, ...]] = {}
        """stream -> the topics that are read by it."""
        self.missing: dict[int, None] = {}
        """Streams that their group does not serve, and that the client has not been told of."""
        self.asking: dict[int, Question] = {}
        """Questions to several groups, by the number of each part."""
        self.greeting: dict[int, tuple[Hello, str | None]] = {}
        """Hellos that have not been answered, with the user that said each."""
        self.puts: dict[int, None] = {}
        """Puts that have not been answered. A commit over several groups goes another way, and would overtake them."""
        self.commit = 0
        """The commit over several groups, or the request for the parts of a subscription one after the other, that has
        not been answered: all that came after it waits here.
        """
        self.goes_on = False
        """Whether what has waited is being passed on."""
        self.held: list[Waiting] = []
        self.held_bytes = 0

    def on_answered(self, number: int) -> bool:
        """A put or a commit has been answered; whether something may go on that had to wait for it."""
        self.puts.pop(number, None)
        if self.commit == number:
            self.commit = 0
        return bool(self.held) and not self.commit


class ClientConnections:
    """All connections, by the peer that the socket knows and by the number that other nodes know."""

    def __init__(self, first_number: int) -> None:
        self._last_number = first_number
        self._by_peer: dict[Any, ClientConnection] = {}
        self._by_number: dict[int, ClientConnection] = {}
        self._broken: dict[Any, None] = {}
        """Connections that were given up, and over which something may still come."""

    def __iter__(self) -> Iterator[ClientConnection]:
        return iter(list(self._by_number.values()))

    def __len__(self) -> int:
        return len(self._by_number)

    def is_broken(self, peer: Any) -> bool:
        return peer in self._broken

    def at(self, now_ms: int, peer: Any) -> ClientConnection | None:
        """Who is at this connection; somebody new if nobody was, None if there are too many."""
        connection = self._by_peer.get(peer)
        if connection is None:
            if len(self._by_peer) >= CONNECTIONS_MAX:
                return None
            self._last_number += 1
            connection = ClientConnection(self._last_number, peer, now_ms)
            self._by_peer[peer] = self._by_number[connection.number] = connection
        connection.heard_ms = now_ms
        return connection

    def find(self, number: int) -> ClientConnection | None:
        return self._by_number.get(number)

    def give_up(self, connection: ClientConnection) -> None:
        """Nothing that comes over this connection counts any more.

        A bare REQ, which is wrapped in a tuple, keeps its connection, and never has more than one request under way.
        """
        self.forget(connection)
        if not isinstance(connection.peer, tuple):
            self._broken[connection.peer] = None
        if len(self._broken) > BROKEN_MAX:
            del self._broken[next(iter(self._broken))]

    def forget(self, connection: ClientConnection) -> None:
        self._by_peer.pop(connection.peer, None)
        self._by_number.pop(connection.number, None)

    def forget_silent(self, now_ms: int) -> None:
        for connection in self:
            if now_ms - connection.heard_ms > SILENCE_MS_MAX:
                self.forget(connection)
