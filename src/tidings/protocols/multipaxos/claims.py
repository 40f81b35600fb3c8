"""What a member says of itself, and what others remember of that; see `witness`."""

from __future__ import annotations

import msgspec

from tidings.protocols.fields import Number
from tidings.protocols.multipaxos.values import ZERO, Ballot


class Extent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far a member has come.

    >>> Extent(Ballot(2, 1), 7).joined(Extent(Ballot(3, 1), 5))
    Extent(promised=Ballot(number=3, node=1), reach=7)
    """

    promised: Ballot
    reach: Number
    """The first slot above everything that it has accepted or knows to be decided."""

    def covers(self, other: Extent) -> bool:
        return self.promised >= other.promised and self.reach >= other.reach

    def joined(self, other: Extent) -> Extent:
        return Extent(max(self.promised, other.promised), max(self.reach, other.reach))


NOTHING = Extent(ZERO, 0)


class Claim(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a member says of itself with each message: all of it is on its disk."""

    life: Number
    began: Extent
    now: Extent
    to: Number = 0
    """The life of the receiver that is spoken to, as far as is known; 0: any."""


class Memory(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a member has said of itself at most, and in which of its lives last."""

    node: Number
    life: Number
    extent: Extent
