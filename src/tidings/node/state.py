"""What a replica needs to know of the state that is replicated, and what it says of it."""

from __future__ import annotations

from typing import Protocol

from tidings.journal.disk import Buffer
from tidings.protocols.multipaxos.values import Change, Command, Value
from tidings.protocols.stack import Notification


class State(Protocol):
    """What is replicated. It has no clock and no randomness: the same commands in the same order, the same state."""

    def apply(self, command: Command, address: int) -> bytes | None:
        """Changes the state by a command whose body lies at an address of this journal; what its client is answered."""

    def apply_change(self, change: Change) -> None:
        """A node comes, votes or goes; who votes is not for the state to judge."""

    def apply_local(self, command: bytes, time_ms: int, address: int) -> None:
        """The same for a command that this node has given itself: for itself only, or when it was alone."""

    def move(self, address: int, size_bytes: int, new_address: int) -> None:
        """A command's body lies somewhere else from now on."""

    def copies_within(self, start: int, end: int) -> list[bytes]:
        """What lies between two addresses: for each body the command for this replica that would copy it."""

    def place_of(self, copy: bytes) -> tuple[int, int] | None:
        """Where in this replica's journal that lies which such a command, of any replica, copies; and its size."""

    def buffers(self, body: Buffer) -> tuple[Buffer, ...]:
        """A command's body in the pieces in which it will be read."""

    def seal(self) -> tuple[bytes, bytes]:
        """An index of what was gained since the last seal, and all the rest of the state."""

    def mark_sealed(self) -> None:
        """What `seal` returned last is on its way to the disk: what is gained from now on is for the next index."""

    def restore(self, snapshot: bytes, indexes: list[bytes]) -> None:
        """Takes what `seal` returned, or was sealed when the node was alone; the indexes in their order; into a new
        state, once."""

    def lowest_address(self, end_address: int) -> int:
        """Below this address the state needs nothing of the journal."""


class Applied(Notification, frozen=True):
    """A slot is decided, on this disk, and applied: every slot once in a life, in their order."""

    slot: int
    value: Value
    result: bytes | None


class StateExchanged(Notification, frozen=True):
    """The state was exchanged for another replica's; the slots below `next_slot` were never `Applied`."""

    next_slot: int
