"""How a group of replicas begins."""

from __future__ import annotations

from tidings.errors import InvalidRequest
from tidings.protocols.multipaxos.membership import Membership, Term
from tidings.protocols.multipaxos.records import Snapshot

FIRST_SLOT = 1
"""A node that has nothing at all stands at slot 0, and so always gets a snapshot first."""


def founding(voters: tuple[int, ...], window: int) -> Snapshot:
    """What every founder of a group begins with; `window` is how many slots may ever be open at once."""
    if len(set(voters)) != len(voters) or not voters or min(voters) < 1 or window < 1:
        raise InvalidRequest("A group needs voters with different numbers from 1 on, and a window of at least 1.")
    membership = Membership(tuple(sorted(voters)), newest=max(voters))
    return Snapshot(FIRST_SLOT, window, (Term(FIRST_SLOT, membership),))
