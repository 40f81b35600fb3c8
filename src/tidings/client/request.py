"""A request of the client's, and the name that it is made in."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Protocol

from tidings.client.future import Future
from tidings.client.link import Frame
from tidings.client.puts import Entry
from tidings.errors import Fenced, TidingsError
from tidings.message import check_name
from tidings.protocols.broker.messages import AnyAnswer, AnyRequest, Commit, Put, Welcome
from tidings.settings import ClientSettings

Make = Callable[[int, int], AnyRequest]
"""Makes a request out of its number and the epoch that it is sent in."""


class Owner(Protocol):
    """What is told how a request ended, once each time that it is sent: a future, or a batch."""

    def finish(self, answer: AnyAnswer, /) -> None:
        """The broker has answered."""

    def fail(self, error: BaseException, /) -> None:
        """It was refused, or no answer came."""


class Publishes(Protocol):
    """What a name publishes, as the session and the operations see it."""

    @property
    def idle(self) -> bool:
        """Whether everything that was given has been answered."""

    @property
    def has_room(self) -> bool:
        """Whether one more message may be given."""

    def give(self, entry: Entry) -> None:
        """Takes something to be published."""

    def resend(self, entry: Entry) -> Future[object]:
        """Sends something of unknown outcome again as it was."""

    def fence_unknown(self, topic: str) -> None:
        """Makes sure that nothing which was put to the topic can still be stored without our knowing."""

    def is_quiet(self, topic: str) -> bool:
        """Whether nothing is on its way to the topic."""

    def has_unknown(self, topic: str) -> bool:
        """Whether something that may be stored in the topic has not been answered."""

    def last_sequence(self, topic: str) -> Request:
        """Asks the broker for the last sequence number that the topic took from this name."""

    def pump(self) -> None:
        """Sends what may be sent."""

    def fail_waiting(self, error: Callable[[], TidingsError]) -> None:
        """What has not been sent fails too."""


class Identity:
    """One name that a session speaks for, with its epoch."""

    outbox: Publishes
    """What the name publishes."""

    def __init__(self, name: str, token: bytes, anonymous: bool) -> None:
        self.name = check_name(name)
        self.anonymous = anonymous
        self.epoch = 0
        """0 until the broker has given one."""
        self.token = token
        self.greeting: Request | None = None
        self.held: list[Request] = []
        self.outstanding = 0
        self.renew = False
        """Copies of older requests may be under way: take a new epoch before anything else is sent."""
        self.stale_acks = False
        """Copies of acknowledgements may be under way, which would move the cursor of a new subscription."""
        self.fenced: Fenced | None = None
        self.new_token_sent = False
        """Whether the broker may already know the token of a renewal that is not finished."""
        self._seed = token
        self._generation = 0

    def next_token(self) -> None:
        """Takes the next token for a renewal, unless one has been taken that may already be known."""
        if not self.new_token_sent:
            self._generation += 1
            self.token = hashlib.blake2b(self._seed + self._generation.to_bytes(4, "big"), digest_size=16).digest()
            self.new_token_sent = True

    def welcome(self, epoch: int) -> None:
        """The broker has given an epoch."""
        self.epoch = epoch
        self.renew = self.stale_acks = False
        self.new_token_sent = False


class Request:
    """One request: its frames are sent again as they are until the answer comes."""

    __slots__ = (
        "bodies",
        "copies",
        "copies_in_epoch",
        "epoch",
        "frames",
        "identity",
        "kind",
        "make",
        "number",
        "owner",
        "received",
        "sent_ms",
        "tries",
    )

    def __init__(
        self, identity: Identity, make: Make, bodies: Sequence[bytes] = (), owner: Owner | None = None
    ) -> None:
        self.identity = identity
        self.make = make
        self.bodies = bodies
        self.owner: Owner = Future() if owner is None else owner
        self.frames: list[Frame] = []
        self.received: Sequence[Frame] = ()
        """The bodies that came with the answer."""
        self.kind: type = object
        self.number = 0
        self.epoch = 0
        self.sent_ms = 0
        self.tries = 1
        self.copies = self.copies_in_epoch = 0
        """How often it has been sent in all, and in its present epoch; what older epochs sent is fenced."""

    @property
    def future(self) -> Future[AnyAnswer]:
        """The answer to come, for a request that nobody else owns."""
        assert isinstance(self.owner, Future)
        return self.owner

    @property
    def stores(self) -> bool:
        """Whether it would be wrong to take a copy that was refused for the whole."""
        return self.kind in (Put, Commit)


class Asks(Protocol):
    """What the parts of a session need from it: to send requests, and to know the time and the settings."""

    now_ms: int
    settings: ClientSettings
    main: Identity
    limits: Welcome | None
    failing: bool

    @property
    def beat_ms(self) -> int:
        """How often a client that waits for messages asks whether its streams are still served."""

    def request(
        self, now_ms: int, make: Make, bodies: Sequence[bytes] = (), identity: Identity | None = None, tries: int = 1
    ) -> Request:
        """Asks something of the broker."""

    def submit(self, request: Request) -> None:
        """Sends a request, or once more one that was answered."""

    def forget(self, request: Request) -> None:
        """The answer to this request is not waited for any longer."""
