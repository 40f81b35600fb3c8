"""What clients and the broker say to each other.

A request names the client and its epoch, so every one stands by itself: it may be sent again over a new connection, or
to a broker that has been restarted in between, and means the same. `request` is a number that the client chose; the
answer repeats it, and 0 asks for no answer. Bodies (batches, see `message.Columns`) follow the header as frames of
their own and are not part of these types.

A subscription is named by the client and its topics, in any order. `whole` is for the nodes of a ring, if they speak of
a part of it (`subscriptions`). Only `Delivery` comes without having been asked for, on a stream that a `Flow` opened; a
client that never sends `Flow` (a bare REQ socket) gets exactly one answer for each request.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tidings.message import GroupInfo, TopicInfo
from tidings.protocols.broker.bulk import BulkAnswer, BulkRequest
from tidings.protocols.broker.envelope import Answer, Request
from tidings.protocols.broker.operators import OperatorAnswer, OperatorRequest
from tidings.protocols.fields import Name, Noted, Number, Several, Token

VERSION = 1

Start = Literal["now", "earliest", "last"] | Number
LaneKind = Literal["key", "publisher"]
"""What makes a lane: the key, or the publisher and the key."""


class Hello(Request, frozen=True, tag="hello"):
    """Opens a session of a name. A new `token` makes a new epoch and fences the older session of that name; the same
    token again gets the same epoch again. An anonymous name is forgotten at its `Bye`. A session that wants a new epoch
    for itself names the one that it has in `renews`: if that is no longer the current one, a newer session has come.
    """

    version: Number
    client: Name
    token: Token
    anonymous: bool = False
    renews: Number = 0


class Target(msgspec.Struct, frozen=True, array_like=True):
    """A topic that a batch goes to, with the sequence number of the batch's first message there."""

    topic: Name
    sequence: Number


class Part(msgspec.Struct, frozen=True, array_like=True):
    """One batch of a put: where it goes and how many messages it has. Its body is a frame of its own."""

    targets: Several[Target]
    count: Number


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Everything of `topic` below `offset`."""

    topic: Name
    offset: Number


class Acknowledgement(msgspec.Struct, frozen=True, array_like=True):
    """A subscription and how far each of its topics has been dealt with. With the epoch in which it was created, a
    later one on the same topics is left alone."""

    topics: Several[Name]
    positions: Several[Position]
    created_epoch: Number = 0
    whole: Several[Name] = ()


class Put(Request, frozen=True, tag="put"):
    """Stores one batch (one body frame) in every target topic, or in none."""

    client: Name
    epoch: Number
    part: Part


class Commit(Request, frozen=True, tag="commit"):
    """Puts and acknowledgements as one: all of them happen or none. A body frame for each part."""

    client: Name
    epoch: Number
    parts: Several[Part]
    acknowledgements: Several[Acknowledgement]


class Subscribe(Request, frozen=True, tag="subscribe"):
    """Makes a durable subscription, or finds the one that is there (`start` is then ignored)."""

    client: Name
    epoch: Number
    topics: Several[Name]
    start: Start = "now"
    whole: Several[Name] = ()


class Unsubscribe(Request, frozen=True, tag="unsubscribe"):
    client: Name
    epoch: Number
    topics: Several[Name]
    whole: Several[Name] = ()


class Get(Request, frozen=True, tag="get"):
    """The next message of a subscription to one topic, without moving its cursor."""

    client: Name
    epoch: Number
    topic: Name


class Ack(Request, frozen=True, tag="ack"):
    """Moves a subscription's cursor forward; what is already behind it is acknowledged again."""

    client: Name
    epoch: Number
    acknowledgement: Acknowledgement


class Flow(Request, frozen=True, tag="flow"):
    """Grants a subscription's stream room for so many messages and bytes, counted from its start.

    A `stream` number above the last one starts the stream again: at `positions`, or at the cursor where
    none is given. The same number again only raises the two limits; a lower one is late and ignored.
    """

    client: Name
    epoch: Number
    topics: Several[Name]
    stream: Number
    positions: Several[Position]
    messages: Number
    size_bytes: Number
    whole: Several[Name] = ()


class Beat(Request, frozen=True, tag="beat"):
    """I am here, and these are the streams that I believe in, by number."""

    client: Name
    epoch: Number
    streams: Several[Number]


class Join(Request, frozen=True, tag="join"):
    """Makes the client a member of a topic's group; the first one makes the group (`start`, `lanes` count then)."""

    client: Name
    epoch: Number
    group: Name
    topic: Name
    start: Start = "earliest"
    lanes: LaneKind = "key"


class Leave(Request, frozen=True, tag="leave"):
    """The client is no longer a member; what it has not acked goes on with the others."""

    client: Name
    epoch: Number
    group: Name
    topic: Name


class Held(msgspec.Struct, frozen=True, array_like=True):
    """Messages that a member still has in flight from an earlier stream: a batch's attempt, and its offsets."""

    attempt: Number
    ranges: Several[tuple[Number, Number]]


class Work(Request, frozen=True, tag="work"):
    """A member has room for so many messages in flight, in all.

    A `stream` number above the last one begins again: what the broker sent before and is not in `held` was lost.
    """

    client: Name
    epoch: Number
    group: Name
    topic: Name
    stream: Number
    room: Number
    held: Several[Held] = ()
    begins: bool = False
    """Whether this opens the stream; otherwise it speaks of one that the broker must know."""
    taken: Several[tuple[Number, Number]] | None = None
    """What of the messages in flight has been handed to the application. A stream begins with all of it; later the
    member says so of what came as another attempt, before it hands it out. None: it does not say."""


class BatchRanges(msgspec.Struct, frozen=True, array_like=True):
    """Messages of a batch, as ranges of offsets (end exclusive); no ranges means all that is left of it."""

    batch: Number
    ranges: Several[tuple[Number, Number]] = ()


class GroupAck(Request, frozen=True, tag="settle"):
    """These messages have been dealt with."""

    client: Name
    epoch: Number
    group: Name
    topic: Name
    stream: Number
    acks: Several[BatchRanges]


class GroupNack(Request, frozen=True, tag="release"):
    """These messages could not be dealt with: give them out again, not before `delay_ms`."""

    client: Name
    epoch: Number
    group: Name
    topic: Name
    stream: Number
    nack: BatchRanges
    delay_ms: Number = 0


class Extend(Request, frozen=True, tag="extend"):
    """This batch takes longer: do not send it again yet."""

    client: Name
    epoch: Number
    group: Name
    topic: Name
    stream: Number
    batch: Number


class GroupPause(Request, frozen=True, tag="rest"):
    """Ends a member's stream: everything in flight goes back. It stays a member, and may open another stream."""

    client: Name
    epoch: Number
    group: Name
    topic: Name
    stream: Number
    untouched: Several[tuple[Number, Number]] = ()
    """Not looked at: what is still on its way to a member cannot be in it."""
    taken: Several[tuple[Number, Number]] | None = None
    """What of it has been handed to the application: only that was an attempt. None: the member does not say."""


class AskGroups(Request, frozen=True, tag="groups"):
    """All groups, or those of a topic; no session is needed."""

    topic: Name | None = None


class AskSequence(Request, frozen=True, tag="sequence"):
    """Which sequence number of this client did the topic take last?"""

    client: Name
    epoch: Number
    topic: Name


class AskSubscriptions(Request, frozen=True, tag="subscriptions"):
    client: Name
    epoch: Number


class AskSubscribers(Request, frozen=True, tag="subscribers"):
    """Who below the client's own name, `client/...`, has subscriptions, and which?"""

    client: Name
    epoch: Number


class AskTopics(Request, frozen=True, tag="topics"):
    """All topics, or the one that is named; no session is needed."""

    topic: Name | None = None


class AskStatus(Request, frozen=True, tag="status"):
    pass


class Bye(Request, frozen=True, tag="bye"):
    """The session ends: its streams are closed; an anonymous name is forgotten, subscriptions and all."""

    client: Name
    epoch: Number


class Shutdown(Request, frozen=True, tag="shutdown"):
    client: Name
    epoch: Number


class LimitTopic(Request, frozen=True, tag="limit-topic"):
    """How many messages may wait in a topic, which is made if it is missing; 0: any number, None: as the broker is set.

    Answered by `Topics`, with this one, when it is in the journal.
    """

    topic: Name
    max_backlog: Number | None


GroupRequest = Work | GroupAck | GroupNack | Extend | GroupPause
"""What a member says of its stream."""

AnyRequest = (
    Hello
    | Put
    | Commit
    | Subscribe
    | Unsubscribe
    | Get
    | Ack
    | Flow
    | Beat
    | Join
    | Leave
    | GroupRequest
    | AskGroups
    | AskSequence
    | AskSubscriptions
    | AskSubscribers
    | AskTopics
    | AskStatus
    | OperatorRequest
    | Bye
    | Shutdown
    | LimitTopic
    | BulkRequest
)


class Welcome(Answer, frozen=True, tag="welcome"):
    """The session's epoch, the limits that the broker will hold the client to, and whom a ring's node is to tell."""

    epoch: int
    version: int
    message_bytes_max: int
    batch_bytes_max: int
    batch_messages_max: int
    members: tuple[str, ...] = ()
    """The addresses of the replica group that this broker leads; a single broker has none."""
    noted: Noted | None = None


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """Where one batch went in one topic.

    New messages have consecutive offsets from `first_offset` on (None when none was new); `repeated` lists the others
    as (index in the batch, offset of the first copy or None if that is gone).
    """

    first_offset: Number | None
    repeated: Several[tuple[Number, Number | None]] = ()


class PutDone(Answer, frozen=True, tag="stored"):
    """One `Stored` for each target topic of the put."""

    stored: tuple[Stored, ...]


class CommitDone(Answer, frozen=True, tag="committed"):
    """For each part, one `Stored` for each of its targets."""

    stored: tuple[tuple[Stored, ...], ...]


class SubscribeDone(Answer, frozen=True, tag="subscribed"):
    """The cursors, and whether the subscription is new."""

    positions: tuple[Position, ...]
    created: bool


class UnsubscribeDone(Answer, frozen=True, tag="unsubscribed"):
    pass


class Article(Answer, frozen=True, tag="article"):
    """The message that `Get` asked for; its body frame is a batch of one."""

    topic: str
    offset: int
    attempt: int


class Empty(Answer, frozen=True, tag="empty"):
    """The subscription has nothing new."""

    topic: str


class AckDone(Answer, frozen=True, tag="acked"):
    """The acknowledgement of the acknowledgement: the cursor has moved and stays moved."""


class Flowing(Answer, frozen=True, tag="flowing"):
    """The stream stands here: all deliveries up to these positions were sent before this answer."""

    stream: int
    sent: tuple[Position, ...]
    created_epoch: int = 0
    """The epoch of the session that created the subscription: it tells this one from another on the same topics."""


class BeatDone(Answer, frozen=True, tag="beaten"):
    """Which of the streams that the client believes in the broker does not serve: open them again."""

    missing: tuple[int, ...]


class JoinDone(Answer, frozen=True, tag="joined"):
    """Whether the group is new."""

    created: bool


class LeaveDone(Answer, frozen=True, tag="left"):
    pass


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """What of the messages in flight is still the member's, under a new batch number."""

    batch: int
    attempt: int
    ranges: Several[tuple[int, int]]


class Working(Answer, frozen=True, tag="working"):
    """The stream stands; all batches that there was work for were sent before this answer.

    Of what the member said it had in flight, `kept` is still its own and `acked` it has acked itself, though the
    answer may have been lost; the rest has gone to others, and what the member made of it must be dropped.
    """

    stream: int
    kept: tuple[Kept, ...] = ()
    acked: Several[tuple[int, int]] = ()
    turn: int = 0
    """The last turn that was sent before this answer."""


class GroupAckDone(Answer, frozen=True, tag="settled"):
    """Acked for good, except for these batches: they had gone to another member, so drop their results."""

    stale: tuple[int, ...] = ()
    turn: int = 0
    """Its place among the batches, as that of ReleaseDone."""


class GroupNackDone(Answer, frozen=True, tag="released"):
    """Everything that the member must drop: what it released, and what it had behind it of the same lanes."""

    ranges: Several[tuple[int, int]] = ()
    turn: int = 0
    """Its place among the batches: those before it may be meant, those after it are not."""


class ExtendDone(Answer, frozen=True, tag="extended"):
    pass


class GroupPauseDone(Answer, frozen=True, tag="rested"):
    pass


class Groups(Answer, frozen=True, tag="groups"):
    groups: tuple[GroupInfo, ...]


class Sequence(Answer, frozen=True, tag="sequence"):
    """The last sequence number taken, 0 when there was none."""

    last: int


class Subscriptions(Answer, frozen=True, tag="subscriptions"):
    """The client's subscriptions, each as its topics."""

    subscriptions: tuple[tuple[str, ...], ...]


class Subscribers(Answer, frozen=True, tag="subscribers"):
    """Names with their subscriptions, each as its topics."""

    subscribers: dict[str, tuple[tuple[str, ...], ...]]


class Topics(Answer, frozen=True, tag="topics"):
    topics: tuple[TopicInfo, ...]


DAMAGED_MAX = 16
"""Damaged places that a status names."""


class Status(Answer, frozen=True, tag="status"):
    """Plain numbers about the broker, by name; and where its journal is damaged, the first few places."""

    numbers: dict[str, int]
    damaged: tuple[str, ...] = ()


class ByeDone(Answer, frozen=True, tag="farewell"):
    pass


class ShutdownDone(Answer, frozen=True, tag="stopping"):
    """What was acknowledged is stored; the broker stops now."""


class Failed(Answer, frozen=True, tag="error"):
    """A refusal: the number of the error class and a sentence that says what to do."""

    number: int
    text: str


class NotLeader(Answer, frozen=True, tag="elsewhere"):
    """This node does not lead: ask there. The request was not taken; the leader may have it from before.

    With the request number 0 it comes unasked: everything that the client had here has ended, and goes on there.
    """

    leader: str
    """tcp://HOST:PORT of the leader as far as is known here, "" if nobody is known to lead."""
    members: tuple[str, ...] = ()
    """The addresses of all members of the group, as far as is known here."""


class GroupBatch(msgspec.Struct, frozen=True, array_like=True, tag="parcel"):
    """Messages for one member of a group; each body frame holds some of them, in the order of `offsets`."""

    stream: int
    turn: int
    """What a stream is sent is numbered from 1 and taken in this order: batches, and answers to Ack and Release."""
    batch: int
    attempt: int
    offsets: tuple[int, ...]


class Delivery(msgspec.Struct, frozen=True, array_like=True, tag="delivery"):
    """Messages of one topic on a stream; each body frame is a stored batch, untouched.

    The bodies hold the offsets `first_offset` to `next_offset` - 1. The stream had stood at `since`: it is above
    `first_offset` if a stored batch has some from before it, which the client drops, and below if some are not for it.
    """

    stream: int
    topic: str
    since: int
    first_offset: int
    next_offset: int
    attempt: int


AnyAnswer = (
    Welcome
    | PutDone
    | CommitDone
    | SubscribeDone
    | UnsubscribeDone
    | Article
    | Empty
    | AckDone
    | Flowing
    | BeatDone
    | JoinDone
    | LeaveDone
    | Working
    | GroupAckDone
    | GroupNackDone
    | ExtendDone
    | GroupPauseDone
    | Groups
    | GroupBatch
    | Sequence
    | Subscriptions
    | Subscribers
    | Topics
    | Status
    | OperatorAnswer
    | ByeDone
    | ShutdownDone
    | Failed
    | NotLeader
    | Delivery
    | BulkAnswer
)
