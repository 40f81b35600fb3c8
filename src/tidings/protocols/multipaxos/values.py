"""What a slot of the log may hold, and the ballots under which it is proposed."""

from __future__ import annotations

import msgspec

from tidings.protocols.fields import Name, Number


class Ballot(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """One attempt to lead: a number, and the node that made it. No two nodes ever share one.

    >>> Ballot(2, 1) < Ballot(2, 3) < Ballot(3, 1)
    True
    """

    number: int
    node: Number

    def __str__(self) -> str:
        return f"{self.number}.{self.node}"


ZERO = Ballot(0, 0)
"""Below every ballot of a node."""
CHOSEN = Ballot(2**64 - 1, 0)
"""Above every ballot of a node: the mark of a value that is known to be chosen, no matter who proposed it."""


class Noop(msgspec.Struct, frozen=True, array_like=True, tag="noop", gc=False):
    """Nothing: it fills a hole, or brings a change of the membership into force."""


class Command(msgspec.Struct, frozen=True, array_like=True, tag="command", gc=False):
    """Something for the state, which alone looks into `body`, and by (client, sequence) knows what it has applied.

    The same command may be chosen in two slots: a client that gets no answer sends it again, to another leader perhaps.
    """

    client: Name
    sequence: Number
    body: bytes
    """Or a view of bytes, where these lie in something larger."""


class Add(msgspec.Struct, frozen=True, array_like=True, tag="add", gc=False):
    """Takes in a node that listens and does not vote. Its number has never been used before."""

    node: Number
    address: Name = ""
    """Where it is reached, and which disk it is: both for the runtime alone."""
    disk: bytes = b""


class Promote(msgspec.Struct, frozen=True, array_like=True, tag="promote", gc=False):
    """Gives a node that listens its vote."""

    node: Number


class Remove(msgspec.Struct, frozen=True, array_like=True, tag="remove", gc=False):
    """Takes a node out, whether it votes or not."""

    node: Number
    heir: bytes = b""
    """The disk that comes in the place of the node's, which is lost; for the runtime alone."""


Change = Add | Promote | Remove
Value = Noop | Command | Add | Promote | Remove


def size_of(value: Value) -> int:
    """About how many bytes a value is on its way."""
    return 32 + (len(value.body) if isinstance(value, Command) else 0)


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an acceptor holds in a slot: a value, and the ballot under which it was proposed."""

    slot: Number
    ballot: Ballot
    value: Value
