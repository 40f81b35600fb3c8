"""What two groups say to each other while ranges go from one to the other. The target asks, the source answers.

Everything can be lost, repeated and late: the target asks again, and what it asks follows from its journal alone. Once
something is given, the source reminds the target of it, whatever either of them has forgotten.
"""

from __future__ import annotations

from tidings.protocols.effects import Effect
from tidings.protocols.fields import Name, Number, Several
from tidings.protocols.ring.commands import LoadedTopic
from tidings.protocols.ring.commit_messages import CommitMessage
from tidings.protocols.ring.facts import Mark
from tidings.protocols.ring.key_ranges import KeyRanges
from tidings.protocols.ring.messages import GroupDescriptor, Word
from tidings.protocols.stack import Message


class TransferOffer(Message, frozen=True, tag="Bequest"):
    """The sender wants to leave: would you take these ranges?"""

    source: GroupDescriptor
    ranges: KeyRanges


class Pull(Message, frozen=True):
    """The sender wants these ranges, and asks for what it does not have yet."""

    target: GroupDescriptor
    source: bytes
    """The group that is asked."""
    ranges: KeyRanges
    number: Number
    """Comes back with the answer."""
    start: Name
    """Topics from this name on are asked for, as long as nothing is given."""
    mark: Mark
    """How many of the facts are there, once something is given."""
    have: Several[tuple[Name, Number]]
    """Topics of which the target has something, and up to which offset; those from where it asks, in order."""
    until: Name
    """The last name that `have` speaks for, "" if for all that follow."""
    vacant: KeyRanges = ()
    """Where the target has topics of its own: nothing is given if the source has any there."""


class Piece(Message, frozen=True):
    """Batches, and facts once something is given. Two frames follow: the bodies in a row, and the command `Facts`; a
    third one if the facts say that something is staged, with its bodies.
    """

    source: GroupDescriptor
    number: Number
    ranges: KeyRanges
    """What is given, or would be."""
    transfer: Number
    """The number of the transfer, 0 as long as nothing is given."""
    topics: Several[LoadedTopic]
    following: Name
    """The topic with which to go on; "" if the target has all there was a moment ago."""


class Nothing(Message, frozen=True):
    """We own nothing of what you asked for; this is what we know."""

    number: Number
    word: Word


class Clash(Message, frozen=True):
    """Nothing of what you asked for is given, because these topics lie where you have some of your own."""

    number: Number
    source: bytes
    topics: Several[Name]


class Ready(Message, frozen=True):
    """The sender has nearly everything: give it these ranges."""

    target: GroupDescriptor
    source: bytes
    ranges: KeyRanges
    vacant: KeyRanges = ()


class HandedOff(Message, frozen=True, tag="Given"):
    """These ranges are yours: take them. Repeated until you have."""

    source: GroupDescriptor
    number: Number
    ranges: KeyRanges


class TakenOver(Message, frozen=True, tag="Taken"):
    """The sender owns what you gave it."""

    target: GroupDescriptor
    source: bytes
    number: Number


HandoffMessage = TransferOffer | Pull | Piece | Nothing | Clash | Ready | HandedOff | TakenOver


class ToGroup(Effect, frozen=True):
    """Send a message and its frames to the leader of a group."""

    descriptor: GroupDescriptor
    message: HandoffMessage | CommitMessage
    bodies: tuple[bytes | memoryview, ...] = ()
