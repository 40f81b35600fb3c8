"""What two groups say to each other while arcs go from one to the other. The taker asks, the giver answers.

Everything can be lost, repeated and late: the taker asks again, and what it asks follows from its journal alone. Once
something is given, the giver reminds the taker of it, whatever either of them has forgotten.
"""

from __future__ import annotations

from tidings.protocols.effects import Effect
from tidings.protocols.ring.arcs import Arcs
from tidings.protocols.ring.commands import LoadedTopic
from tidings.protocols.ring.facts import Mark
from tidings.protocols.ring.messages import Card, Word
from tidings.protocols.stack import Message


class Bequest(Message, frozen=True):
    """The sender wants to leave: would you take these arcs?"""

    giver: Card
    arcs: Arcs


class Pull(Message, frozen=True):
    """The sender wants these arcs, and asks for what it does not have yet."""

    taker: Card
    giver: bytes
    """The group that is asked."""
    arcs: Arcs
    number: int
    """Comes back with the answer."""
    start: str
    """Topics from this name on are asked for, as long as nothing is given."""
    mark: Mark
    """How many of the facts are there, once something is given."""
    have: tuple[tuple[str, int], ...]
    """Topics of which the taker has something, and up to which offset; those from where it asks, in order."""
    until: str
    """The last name that `have` speaks for, "" if for all that follow."""
    vacant: Arcs = ()
    """Where the taker has topics of its own: nothing is given if the giver has any there."""


class Piece(Message, frozen=True):
    """Batches, and facts once something is given. Two frames follow: the bodies in a row, and the command `Facts`."""

    giver: Card
    number: int
    arcs: Arcs
    """What is given, or would be."""
    gift: int
    """The number of the gift, 0 as long as nothing is given."""
    topics: tuple[LoadedTopic, ...]
    following: str
    """The topic with which to go on; "" if the taker has all there was a moment ago."""


class Nothing(Message, frozen=True):
    """We own nothing of what you asked for; this is what we know."""

    number: int
    word: Word


class Clash(Message, frozen=True):
    """Nothing of what you asked for is given, because these topics lie where you have some of your own."""

    number: int
    giver: bytes
    topics: tuple[str, ...]


class Ready(Message, frozen=True):
    """The sender has nearly everything: give it these arcs."""

    taker: Card
    giver: bytes
    arcs: Arcs
    vacant: Arcs = ()


class Given(Message, frozen=True):
    """These arcs are yours: take them. Repeated until you have."""

    giver: Card
    number: int
    arcs: Arcs


class Taken(Message, frozen=True):
    """The sender owns what you gave it."""

    taker: Card
    giver: bytes
    number: int


HandoverMessage = Bequest | Pull | Piece | Nothing | Clash | Ready | Given | Taken


class ToGroup(Effect, frozen=True):
    """Send a message and its frames to whoever leads a group."""

    card: Card
    message: HandoverMessage
    bodies: tuple[bytes | memoryview, ...] = ()
