"""What Chord says: across to its peers, up and down its stack, and to itself later."""

from __future__ import annotations

from tidings.protocols.chord.identifiers import Key
from tidings.protocols.fields import Number, Several
from tidings.protocols.stack import Message, NodeId, Notification, Request, Timer

# Across: the ring.


class AskLinks(Message, frozen=True):
    """Tell me your predecessor and your successor list."""

    query: Number


class TellLinks(Message, frozen=True):
    query: Number
    predecessor: NodeId | None
    successors: Several[NodeId]


class Precede(Message, frozen=True):
    """I take you for my successor; so I may be your predecessor (`notify` in the 2001 paper)."""


class Place(Message, frozen=True):
    """Your place in the ring is behind me, and this is my successor list: copy it."""

    successors: Several[NodeId]


# Across: routes.

ROUTE, STEP, LOOKUP, JOIN = range(4)


class Hop(Message, frozen=True):
    """A message on its way to the owner of its key, one hop further."""

    number: Number
    """For the confirmation of this hop alone."""
    kind: Number
    key: Key
    origin: NodeId
    """Who sent the message at first; for STEP, who made the last step."""
    token: Number
    """The origin's own number of a lookup."""
    hops: Number
    is_last: bool
    """The sender takes the receiver for the owner."""
    payload: bytes


class HopTaken(Message, frozen=True):
    """The receiver of a hop goes on from here."""

    number: Number


class Found(Message, frozen=True):
    """I am responsible for the key of your lookup."""

    token: Number
    hops: Number


# Down.


class Route(Request, frozen=True):
    """Carry a payload to the owner of a key. It arrives at least once if the origin and the way to the owner
    survive.
    """

    key: Key
    payload: bytes


class RouteStep(Request, frozen=True):
    """Carry a payload one node nearer to the owner of a key; the layer above there decides whether it goes on."""

    key: Key
    payload: bytes


class FindRoot(Request, frozen=True):
    """Find the owner of a key: `RootFound` comes back, or `RootUnknown`."""

    key: Key


class Consider(Request, frozen=True):
    """Somebody may stand between this node and its successor: ask it, once, and adopt it if it answers."""

    peer: NodeId


class Seek(Request, frozen=True):
    """Ask these to find this node's place in their ring; ignored by a node that has one."""

    contacts: tuple[NodeId, ...]


class TakePlace(Request, frozen=True, tag="Settle"):
    """Begin as a member that knows its neighbours; ignored by a node that is one already."""

    predecessor: NodeId
    successors: tuple[NodeId, ...]


# Up.


class Delivered(Notification, frozen=True):
    """A routed payload has come to its owner: this node."""

    key: Key
    payload: bytes
    origin: NodeId
    hops: int


class Stepped(Notification, frozen=True):
    """A payload has come one step nearer to its owner, which may be this node."""

    key: Key
    payload: bytes
    sender: NodeId
    is_owner: bool


class RootFound(Notification, frozen=True):
    key: Key
    root: NodeId
    hops: int
    """Nodes that passed the question on, the asker included: 0 if it owns the key itself."""


class RootUnknown(Notification, frozen=True):
    """No attempt to find the owner of a key had an answer."""

    key: Key


class NeighboursChanged(Notification, frozen=True):
    """The predecessor or the successor list is another one: so may be what this node owns.

    The predecessor is None while the last one is known to be dead and nobody has taken its place.
    """

    predecessor: NodeId | None
    successors: tuple[NodeId, ...]


class Isolated(Notification, frozen=True):
    """Every successor is dead: the node is out of the ring and asks its contacts to be let in again."""


# Later.


class StabiliseDue(Timer, frozen=True):
    pass


class FixFingersDue(Timer, frozen=True):
    pass


class JoinDue(Timer, frozen=True):
    pass


class QueryDue(Timer, frozen=True):
    query: int


class HopDue(Timer, frozen=True):
    number: int


class LookupDue(Timer, frozen=True):
    token: int
