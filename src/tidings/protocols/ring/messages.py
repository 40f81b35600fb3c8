"""What the nodes of a ring say to each other, beside what replicas of one group do.

A *descriptor* says where a group is reached, a *word* what it owns. Every word can be repeated, reordered and late: a
higher `slot` is newer of what a group owns, a higher ballot (`term`, then `leader_number`) is newer of who leads it.
"""

from __future__ import annotations

import msgspec

from tidings.protocols.chord.identifiers import Key, key_of
from tidings.protocols.fields import Name, Number, RequestNumber, Several, Token
from tidings.protocols.ring.key_ranges import KeyRange, KeyRanges
from tidings.protocols.stack import Message

VIRTUAL_NODE = "seat:"
"""What the name of a group's place in the ring begins with."""


def virtual_node_of(group: bytes) -> str:
    """The name under which a group takes part in the overlay, whichever of its nodes leads.

    >>> virtual_node_of(bytes(2))
    'seat:0000'
    """
    return VIRTUAL_NODE + group.hex()


class GroupDescriptor(msgspec.Struct, frozen=True, array_like=True):
    """Where a group is reached."""

    group: bytes
    members: Several[Name]
    leader: Name = ""
    """The address of the one that leads, "" if its writer knows of none."""
    term: Number = 0
    """The number of the leader's ballot."""
    slot: Number = 0
    """How much of the group's log the writer of this descriptor has applied."""
    left: bool = False
    """The group has left the ring, and owns nothing."""
    leader_number: Number = 0
    """Which member leads: two members may make ballots of the same number, and that of the higher one is above."""
    asks_homes: bool | None = None
    """As its leader says: it asks the home of a name before it serves it. Nobody else of this release says so, and none
    of an older one says anything: it is told of every hello."""

    @property
    def virtual_node(self) -> str:
        return virtual_node_of(self.group)

    @property
    def point(self) -> Key:
        """Where the group stands on the ring."""
        return key_of(self.virtual_node)


class Gone(msgspec.Struct, frozen=True, array_like=True):
    """A range that a group has given away, and to whom."""

    key_range: KeyRange
    descriptor: GroupDescriptor


class Word(Message, frozen=True):
    """What a group owns, as one of its members knows it, and to whom it gave what it does not own any more."""

    descriptor: GroupDescriptor
    ranges: KeyRanges
    gone: Several[Gone] = ()
    confirmed: Number = 0
    """Its transfers up to this number have been taken, and it knows that; 0 where the word comes from somebody else."""


# Requests of clients on their way between the node at whose door they came and the leader that owns their topics. The
# frames of the request or answer follow these headers, as the client sent them or will get them.


class Relay(Message, frozen=True):
    """A client's request, for the leader of a group."""

    connection: Number
    """The client's connection, as the node at whose door it is numbers it; a number is never used again."""
    group: bytes
    user: Name | None
    """Whose key the client has, where there are keys."""
    ranges: KeyRanges = ()
    """With a question to every group: what this one has to own if the answers are to leave nothing out."""


class Back(Message, frozen=True):
    """An answer, or a delivery, for a client at your door."""

    connection: Number


class NotOwner(Message, frozen=True, tag="Turned"):
    """A relayed request was not taken: we do not lead, or do not own what it is about."""

    connection: Number
    request: RequestNumber
    word: Word


# Finding.


class AskWord(Message, frozen=True):
    """What do you own, and who leads you? Any member answers, as far as it knows."""

    group: bytes


class Find(Message, frozen=True):
    """Who owns a point? Answered by the word of a group that owns it or knows more; perhaps by none."""

    point: Key


# Who knows a name.


class AskEpoch(Message, frozen=True):
    """Our group is asked for something in this name: note that it has to hear of newer sessions, and say which is the
    newest."""

    group: Token
    """Of the sender."""
    client: Name
    number: Number
    """Comes back with the answer."""


class HomeEpoch(Message, frozen=True):
    """The newest epoch of a name, from its home."""

    client: Name
    number: Number
    epoch: Number
    is_noted: bool
    """The group that has asked is told of every newer one."""


# Leaving.


class LeaveNotice(Message, frozen=True, tag="Farewell"):
    """We have left the ring, and will be switched off once somebody knows; and these have left before."""

    word: Word
    left: Several[GroupDescriptor]


class LeaveConfirmed(Message, frozen=True, tag="Heard"):
    """A group knows for good that yours has left; and these, which you may be waiting for, have left before."""

    group: bytes
    left: Several[GroupDescriptor]


# Between groups.


class Between(Message, frozen=True):
    """A message of the overlay from the virtual node of one group to another's, with the descriptors of other virtual
    nodes in it."""

    sender: GroupDescriptor
    receiver: bytes
    """The group that it is for."""
    descriptors: Several[GroupDescriptor]
    message: bytes


# Bodies that several nodes need. The owner sends them once for all, and to each reader only what they are called.


class Ref(msgspec.Struct, frozen=True, array_like=True):
    """A stored batch of a topic, as one node has it."""

    topic: Name
    offset: Number
    """Of its first message."""
    address: Number
    """Where it lies in that node's journal."""
    size_bytes: Number


class Shown(Message, frozen=True):
    """A delivery for a client at your door, whose bodies come another way; those without a reference are behind it."""

    connection: Number
    refs: Several[Ref | None]
    """One for each body, in their order."""


class Bodies(Message, frozen=True):
    """Stored batches of a node, each in a frame."""

    owner: Name
    """The node whose journal the references are about."""
    refs: Several[Ref]


class FetchBodies(Message, frozen=True):
    """Bodies that you have shown have not come: send them."""

    refs: Several[Ref]


class Interest(Message, frozen=True):
    """Clients at the sender's door read these topics. It is said again and again, in several pieces if need be."""

    topics: Several[Name]


NodeMessage = (
    Word
    | Relay
    | Back
    | NotOwner
    | AskWord
    | Find
    | AskEpoch
    | HomeEpoch
    | LeaveNotice
    | LeaveConfirmed
    | Between
    | Shown
    | Bodies
    | FetchBodies
    | Interest
)
