"""What a broker asks of the policy that knows what it owns, and the answers of one that owns everything.

A broker is given its policy when it is made, and asks nobody else: whether a topic is its to serve, whether a client's
epochs are given here, and what the commands do that change this. Topics that are not owned are on their way to another
broker or from one, and nobody may see them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from tidings.errors import InvalidRequest, StorageDamaged
from tidings.protocols.broker.clients import Client
from tidings.protocols.broker.commands import OwnershipCommand, Write
from tidings.protocols.broker.state import State

NOTHING = b"\xc0"
"""The part of a snapshot that says nothing: msgpack's nil."""


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

    def check_staging(self) -> None:
        """Raises if nothing can be staged here."""
        return

    def beside(self, topic: str, name: str) -> str:
        """The name, made such that this topic and the one of that name always have the same owner."""
        return name

    def is_held(self, state: State, client: Client) -> bool:
        """Whether something of a client is on its way to another broker, or from one, and has to stay as it is."""
        return False

    def apply(self, state: State, command: OwnershipCommand, body_address: int) -> object:
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
