"""What a group of a ring writes into its journal beside the commands of its broker: what is owned, and how that moves.

All of these can be repeated without harm. The bodies of a `Load`, and of what `Facts` say is staged, follow the
command in the same record.
"""

from __future__ import annotations

import msgspec

from tidings.protocols.broker.commands import Adopt, Command, OwnCommand, OwnershipCommand
from tidings.protocols.broker.messages import Position
from tidings.protocols.fields import Name, Number, Several
from tidings.protocols.ring.commit_commands import CommitCommand
from tidings.protocols.ring.facts import Fact, Mark
from tidings.protocols.ring.key_ranges import KeyRanges
from tidings.protocols.ring.messages import GroupDescriptor


class Claim(OwnershipCommand, frozen=True, array_like=True, tag="claim"):
    """This group is part of a ring from here on: the one that founds it owns the circle, any other nothing yet."""

    ranges: KeyRanges
    brings: bool = False
    """All that it has is to become the ring's."""
    doors: tuple[str, ...] = ()
    """Nodes of the ring."""


class Know(OwnershipCommand, frozen=True, array_like=True, tag="know"):
    """Other groups of the ring, in the place of those that were known before."""

    descriptors: tuple[GroupDescriptor, ...]


class Seek(OwnershipCommand, frozen=True, array_like=True, tag="seek"):
    """We take these ranges from that group; with a number, they are ours to take. Without ranges: we do so no more."""

    source: bytes
    ranges: KeyRanges
    number: int = 0


class LoadedBatch(msgspec.Struct, frozen=True, array_like=True):
    """A batch that another group stored; `shared` are its places in all topics that it went to."""

    first_offset: Number
    count: Number
    size_bytes: Number
    time_ms: Number
    shared: Several[Position] | None = None
    kept: Several[Number] | None = None
    """Which messages of the body count, if it went to several topics: these tell by it what they have in common."""


class LoadedTopic(msgspec.Struct, frozen=True, array_like=True):
    """Some batches of a topic, in their order. `first_offset` is what the source has left of the topic."""

    topic: Name
    first_offset: Number
    batches: Several[LoadedBatch]


class Load(OwnershipCommand, frozen=True, array_like=True, tag="load"):
    """Batches of topics that are being taken. The bodies follow, those of the first topic first."""

    topics: tuple[LoadedTopic, ...]


class Facts(OwnershipCommand, frozen=True, array_like=True, tag="facts"):
    """The facts of a transfer from one place in their list up to another. They count if they follow what is here.

    The bodies of what they say is staged follow.
    """

    source: bytes
    number: int
    start: Mark
    end: Mark
    facts: tuple[Fact, ...]


class TakeOver(OwnershipCommand, frozen=True, array_like=True, tag="take"):
    """Everything of a transfer is here, and from now on it is owned here."""

    source: bytes
    number: int


class HandOff(OwnershipCommand, frozen=True, array_like=True, tag="give"):
    """These ranges are another group's: nothing is accepted for them from here on."""

    ranges: KeyRanges
    target: GroupDescriptor
    vacant: KeyRanges = ()
    """It is refused if there is, or was, a topic here."""


class Drop(OwnershipCommand, frozen=True, array_like=True, tag="drop"):
    """The target owns the transfer of that number: it is forgotten here."""

    number: int


class Depart(OwnershipCommand, frozen=True, array_like=True, tag="depart"):
    """This group is to leave its ring, whichever node leads; or, if not `wanted`, it stays."""

    wanted: bool = True


TransferCommand = Know | Adopt | Seek | Load | Facts | TakeOver | HandOff | Drop | Depart
RingCommand = Claim | TransferCommand | CommitCommand

_decoder = msgspec.msgpack.Decoder(OwnCommand | RingCommand)


def decode_command(data: bytes | memoryview) -> Command:
    """The command in a record of a journal that may be a ring's, which our own checksum has already vouched for."""
    command: Command = _decoder.decode(data)
    return command
