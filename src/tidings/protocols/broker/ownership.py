"""What a broker asks of the policy that knows what it owns, and the answers of one that owns everything.

A broker is given its policy when it is made, and asks nobody else: whether a topic is its to serve, whether a client's
epochs are given here, and what the commands do that change this. Topics that are not owned are on their way to another
broker or from one, and nobody may see them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from tidings.errors import InvalidRequest, StorageDamaged
from tidings.protocols.broker.bulk import Extent
from tidings.protocols.broker.clients import Client
from tidings.protocols.broker.commands import OwnershipCommand, Publish, Write
from tidings.protocols.broker.messages import Stored
from tidings.protocols.broker.state import State

NOTHING = b"\xc0"
"""The part of a snapshot that says nothing: msgpack's nil."""


class Grown(msgspec.Struct, frozen=True):
    """What came of an ownership command that has put messages into topics: which, and where everything went."""

    topics: tuple[str, ...]
    stored: tuple[tuple[Stored, ...], ...]
    extents: tuple[Extent, ...] = ()
    """The same, of stages that were published."""


class OwnershipPolicy(Protocol):
    """Decides what a broker serves. It changes only by journaled commands, as all other state does.

    What stands here as an answer is that of `OwnsEverything`.
    """

    def owns_topic(self, name: str) -> bool:
        """Whether a topic is served here."""
        return True

    def owns_home(self, client: str) -> bool:
        """Whether the epochs of a client are given here."""
        return True

    def noted(self, client: Client) -> tuple[bytes, ...] | None:
        """The groups that are to hear of a new epoch of a client; None if nobody keeps a list."""
        return None

    def check_topics(self, names: Iterable[str]) -> None:
        """Raises if these topics cannot be used together here."""
        return

    def check_home(self, client: str) -> None:
        """Raises if the epochs of a client are given elsewhere."""
        return

    def check_request(self, message: Any) -> None:
        """Raises if a client's request is not this broker's to answer."""
        return

    def check_write(self, command: Write) -> None:
        """Raises if something of a write is not owned here."""
        return

    def shares_stages(self) -> bool:
        """Whether the batches of a stage may be with several brokers, each of which has those for its own topics."""
        return False

    def check_publish(self, command: Publish) -> None:
        """Raises if stages cannot be published here by one record."""
        return

    def is_frozen(self, name: str) -> bool:
        """Whether what lies where a topic of this name would is being given away, and has to stay as it is."""
        return False

    def check_free(self, client: str) -> None:
        """Raises if a commit of this client is about to be decided, and all else that it wants has to wait."""
        return

    def beside(self, topic: str, name: str) -> str:
        """The name, made such that this topic and the one of that name always have the same owner."""
        return name

    def is_held(self, state: State, client: Client) -> bool:
        """Whether something of a client is on its way to another broker, or from one, and has to stay as it is."""
        return False

    def apply(self, state: State, command: OwnershipCommand, time_ms: int, body_address: int) -> object:
        """Changes what is owned, and the tables with it; a refusal raises and changes nothing."""
        raise InvalidRequest(
            f"This broker owns everything and is part of no ring: it takes no {type(command).__name__}."
        )

    def seal(self) -> bytes:
        """Its part of a snapshot, in msgpack."""
        return NOTHING

    def restore(self, part: memoryview) -> None:
        """Takes what `seal` returned."""
        if part != NOTHING:
            raise StorageDamaged("The snapshot is that of a ring's group: start its node on this folder.")


class OwnsEverything(OwnershipPolicy):
    """The policy of a broker that is all there is."""


EVERYTHING = OwnsEverything()
