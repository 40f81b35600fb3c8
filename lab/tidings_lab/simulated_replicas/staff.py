"""What nodes need to know of the operator."""

from __future__ import annotations

from typing import Protocol

from tidings.protocols.multipaxos.membership import Membership


class Staff(Protocol):
    """The operator, as nodes know him."""

    @property
    def may_replace(self) -> bool:
        """Whether the group can bear the loss of a disk from now on."""

    def on_refused(self, number: int) -> None:
        """A node refuses to start on its disk."""

    def on_confirmed(self, first_slot: int, membership: Membership) -> None:
        """A membership is in force, and the earlier voters are needed no more."""
