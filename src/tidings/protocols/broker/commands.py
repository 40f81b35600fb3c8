"""What the broker writes into the journal: one command a record.

A command holds everything that `Machine.apply` needs, so that replaying the journal gives the same state
again: there is no clock and no randomness in it. The bodies of a `Write`, a `Stage` and a `Carry` follow the command in
the same record, one after the other.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidings.protocols.broker.bulk import StageName
from tidings.protocols.broker.messages import Acknowledgement, LaneKind, Position, Start, Target
from tidings.protocols.fields import NUMBER_MAX, Number, Several

ANY_LENGTH = msgspec.Meta(max_length=NUMBER_MAX)
"""Bounded by the frame that a batch came in: what was stored once has to be read again."""
Id = Annotated[str, ANY_LENGTH]


class Open(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """A session of `client` begins; a token that is not the current one's begins a new epoch."""

    client: str
    token: bytes
    anonymous: bool
    renews: int = 0


class BatchWrite(msgspec.Struct, frozen=True, array_like=True):
    """A batch of `count` messages in a body of `size_bytes`; `ids` is None when no message has one."""

    targets: Several[Target]
    count: Number
    size_bytes: Number
    ids: Annotated[tuple[Id | None, ...], ANY_LENGTH] | None = None


class Write(msgspec.Struct, frozen=True, array_like=True, tag="write"):
    """Puts and acknowledgements that happen together or not at all."""

    client: str
    epoch: int
    batches: tuple[BatchWrite, ...]
    acknowledgements: tuple[Acknowledgement, ...] = ()


class Subscribe(msgspec.Struct, frozen=True, array_like=True, tag="subscribe"):
    client: str
    epoch: int
    topics: tuple[str, ...]
    start: Start
    whole: tuple[str, ...] = ()


class Unsubscribe(msgspec.Struct, frozen=True, array_like=True, tag="unsubscribe"):
    client: str
    epoch: int
    topics: tuple[str, ...]
    whole: tuple[str, ...] = ()


class Attach(msgspec.Struct, frozen=True, array_like=True, tag="attach"):
    """A session begins to read a subscription. `sent` is how far its earlier reader had been served."""

    client: str
    epoch: int
    topics: tuple[str, ...]
    sent: tuple[Position, ...]
    whole: tuple[str, ...] = ()


class Detach(msgspec.Struct, frozen=True, array_like=True):
    """How far a subscription's reader had been served when its session ended."""

    topics: tuple[str, ...]
    sent: tuple[Position, ...]
    whole: tuple[str, ...] = ()


class Close(msgspec.Struct, frozen=True, array_like=True, tag="close"):
    """A session ends in good order; an anonymous name is forgotten with its subscriptions."""

    client: str
    epoch: int
    detached: tuple[Detach, ...]


class Join(msgspec.Struct, frozen=True, array_like=True, tag="join"):
    """A client becomes a member of a group, which is made if it is missing."""

    client: str
    epoch: int
    group: str
    topic: str
    start: Start
    lanes: LaneKind


class Leave(msgspec.Struct, frozen=True, array_like=True, tag="leave"):
    client: str
    epoch: int
    group: str
    topic: str


class GroupAck(msgspec.Struct, frozen=True, array_like=True, tag="settle"):
    """A member has dealt with these messages of a group. Whether they were its to ack was judged before.

    Members of a group get every few messages of a topic, so most offsets stand alone: those are in `offsets`, which
    rise. `ranges` are half-open.
    """

    client: str
    epoch: int
    group: str
    topic: str
    ranges: tuple[tuple[int, int], ...]
    offsets: list[int] = []

    def spread(self) -> list[int]:
        """Every offset that is acked."""
        return [*self.offsets, *(offset for start, end in self.ranges for offset in range(start, end))]


class DeadLetter(msgspec.Struct, frozen=True, array_like=True, tag="dead-letter"):
    """A message that failed too often goes to another topic, and counts as acked, in one step."""

    group: str
    topic: str
    offset: int
    to_topic: str
    size_bytes: int


class Collect(msgspec.Struct, frozen=True, array_like=True, tag="collect"):
    """Groups without members and topics that nobody uses are forgotten, if that is still true."""

    groups: tuple[tuple[str, str], ...]
    topics: tuple[str, ...]
    unused: tuple[Position, ...] = ()
    """Topics that go with all their messages, if nothing was put to them since: their next offsets are still these."""


class LimitTopic(msgspec.Struct, frozen=True, array_like=True, tag="limit-topic"):
    """So many messages may wait in a topic: 0 for any number, None for what the broker's settings say."""

    topic: str
    max_backlog: int | None


class Stage(msgspec.Struct, frozen=True, array_like=True, tag="stage"):
    """A batch for a topic that is stored under the name of a stage, and not yet visible."""

    client: str
    epoch: int
    query: str
    batch: int
    stage: str
    number: int
    topic: str
    count: int
    size_bytes: int
    ids: tuple[str | None, ...] | None = None
    sink: str = ""
    after: int | None = None


class Publish(msgspec.Struct, frozen=True, array_like=True, tag="publish"):
    """These stages become visible in their topics, if the query's batch has not been published yet."""

    client: str
    epoch: int
    query: str
    batch: int
    stages: tuple[StageName, ...]
    once: bool
    sink: str = ""


class Discard(msgspec.Struct, frozen=True, array_like=True, tag="discard"):
    """Stages are dropped, and queries forgotten that nobody has published for since `before_ms`.

    The names of stages are those that their writers gave them, or those under which they are kept.
    """

    stages: tuple[str, ...]
    queries: tuple[str, ...] = ()
    before_ms: int = 0


class Trim(msgspec.Struct, frozen=True, array_like=True, tag="trim"):
    """Everything of these topics below these offsets is no longer kept."""

    positions: tuple[Position, ...]


class Carried(msgspec.Struct, frozen=True, array_like=True):
    """A stored batch that is copied to the journal's end, so that its old segment can be removed."""

    topic: str
    first_offset: int
    size_bytes: int


class CarriedStage(msgspec.Struct, frozen=True, array_like=True):
    """The same for a batch that is staged: which stage, the batch's number in it, and where it lies so far."""

    stage: str
    number: int
    size_bytes: int
    address: int


class Carry(msgspec.Struct, frozen=True, array_like=True, tag="carry"):
    """The bodies of the batches follow, then those of the staged ones."""

    batches: tuple[Carried, ...]
    staged: tuple[CarriedStage, ...] = ()


class OwnershipCommand(msgspec.Struct, frozen=True, array_like=True):
    """A command about what is owned here: the ownership policy that the broker was given knows what it does."""


class Adopt(OwnershipCommand, frozen=True, array_like=True, tag="adopt"):
    """A client has come with an epoch that the owner of its home has given it.

    With a group, for the owner of the home itself: that group is told of new epochs from now on.
    """

    client: str
    epoch: int
    is_noted: bool = False
    """The home has noted our group."""
    group: bytes = b""


OwnCommand = (
    Open
    | Write
    | Subscribe
    | Unsubscribe
    | Attach
    | Close
    | Join
    | Leave
    | GroupAck
    | DeadLetter
    | Collect
    | Stage
    | Publish
    | Discard
    | Trim
    | Carry
    | LimitTopic
)
"""What every broker does by itself, whatever it owns."""

Command = OwnCommand | OwnershipCommand

_decoder = msgspec.msgpack.Decoder(OwnCommand)
encode_command = msgspec.msgpack.Encoder().encode


def decode_command(data: bytes | memoryview) -> Command:
    """The command in a journal record, which our own checksum has already vouched for; one of the broker's own."""
    command: Command = _decoder.decode(data)
    return command
