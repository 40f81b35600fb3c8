"""A request of the client's, and the name that it is made in."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from tidings.client.future import Future
from tidings.client.link import Frame
from tidings.errors import Fenced
from tidings.message import check_name
from tidings.protocols.broker.messages import AnyAnswer, AnyRequest, Commit, Put

if TYPE_CHECKING:
    from tidings.client.outbox import Outbox

Make = Callable[[int, int], AnyRequest]
"""Makes a request out of its number and the epoch that it is sent in."""


class Owner(Protocol):
    """What is told how a request ended, once each time that it is sent: a future, or a batch."""

    def finish(self, answer: AnyAnswer, /) -> None:
        """The broker has answered."""

    def fail(self, error: BaseException, /) -> None:
        """It was refused, or no answer came."""


class Identity:
    """One name that a session speaks for, with its epoch."""

    outbox: Outbox
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
