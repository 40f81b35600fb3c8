"""What replicas say to each other, what is asked of them, what they tell, and what they want done.

Nodes are numbers here; where a number is reached is the runtime's business.
"""

from __future__ import annotations

import msgspec

from tidings.protocols.fields import Name, Number, Several
from tidings.protocols.multipaxos.claims import Claim, Extent
from tidings.protocols.multipaxos.membership import Membership
from tidings.protocols.multipaxos.records import Record
from tidings.protocols.multipaxos.values import Ballot, Change, Command, Entry, Value
from tidings.protocols.stack import Effect, Event, Message, Notification, Request, Timer

# Across: to another replica.


class File(msgspec.Struct, frozen=True, array_like=True):
    """A file of a replica's folder."""

    name: Name
    size_bytes: Number


class PreVote(Message, frozen=True, tag="Canvass"):
    """I hear no leader: do you? Asked before a ballot is made, so that a node that is only deaf deposes nobody."""

    attempt: Number
    decided: Number


class PreVoteGranted(Message, frozen=True, tag="Support"):
    """Nor do I."""

    attempt: Number


class Prepare(Message, frozen=True):
    """Phase 1a, for every slot from `first_slot` on: promise me this ballot, and tell me what you have accepted."""

    ballot: Ballot
    first_slot: Number


class Promise(Message, frozen=True):
    """Phase 1b: nothing below this ballot will be accepted any more; `entries` has what was, up to now.

    Everything below `decided` is chosen. It is not in `entries`, and no longer up to the one who asks.
    """

    ballot: Ballot
    entries: Several[Entry]
    decided: Number


class Accept(Message, frozen=True):
    """Phase 2a: accept these values, one slot after another. Without any it is a heartbeat.

    All slots below `decided` are. `round` counts the leader's questions whether it still leads.
    """

    ballot: Ballot
    first_slot: Number
    values: Several[Value]
    decided: Number
    round: Number


class Accepted(Message, frozen=True):
    """Phase 2b: so many slots are accepted, and when the round came no higher ballot was promised."""

    ballot: Ballot
    first_slot: Number
    count: Number
    decided: Number
    round: Number


class Refused(Message, frozen=True):
    """A hint, and no more: this higher ballot is promised already, and I know so many slots to be decided."""

    promised: Ballot
    decided: Number


class Fetch(Message, frozen=True):
    """Tell me what was chosen from this slot on."""

    first_slot: Number


class FetchCopy(Message, frozen=True):
    """Send me what this command copies: my copy, which has no slot of its own any more, is damaged."""

    command: bytes


class Copied(Message, frozen=True):
    """That is what such a command copies."""

    command: bytes
    body: bytes


class Chosen(Message, frozen=True):
    """These values are chosen, one slot after another."""

    first_slot: Number
    values: Several[Value]
    decided: Number


class Offer(Message, frozen=True):
    """What you ask for is no longer here by itself: take the files of a state that holds every slot below `next_slot`.

    All but the last do not change any more. The last is the snapshot, which goes with just these others. Files of the
    same name from another node, or from another `life` of this one, are others.
    """

    next_slot: Number
    life: Number
    files: Several[File]
    salt: Number = 0
    """What the checksums of the files begin with, which is another number in every folder."""


class FetchFile(Message, frozen=True):
    """Send me this file from this byte on."""

    name: Name
    position: Number
    life: Number


class Piece(Message, frozen=True):
    """A piece of a file."""

    name: Name
    position: Number
    data: bytes


class Recall(Message, frozen=True):
    """I am here, and have come as far as my claim says: what do you remember of me?"""


class Remembered(Message, frozen=True):
    """So far you had come by your own words, before this life of yours, which began with less if it is more."""

    life: Number
    extent: Extent


AnyMessage = (
    PreVote
    | PreVoteGranted
    | Prepare
    | Promise
    | Accept
    | Accepted
    | Refused
    | Fetch
    | Chosen
    | FetchCopy
    | Copied
    | Offer
    | FetchFile
    | Piece
    | Recall
    | Remembered
)


# Down: from the application.


class Propose(Request, frozen=True):
    """Have a command chosen. It is answered by `Decided` here, or by `ProposalRejected`, or with an unknown outcome not
    at all."""

    command: Command


class ChangeMembership(Request, frozen=True):
    """Have a change of the membership chosen; `ProposalRejected` says that it was not even tried."""

    change: Change


class Read(Request, frozen=True):
    """Tell me when everything that was acknowledged before this is decided here."""

    token: int


# Up: to the application.


class Decided(Notification, frozen=True):
    """A slot is decided: every slot once in a life, in their order."""

    slot: int
    value: Value


class ProposalRejected(Notification, frozen=True, tag="TurnedAway"):
    """A command or a change was not tried, or its leader lost its place: ask the leader, with the same sequence."""

    value: Value
    leader: int | None


class ReadReady(Notification, frozen=True):
    """A state that holds every slot below `index` answers the read."""

    token: int
    index: int


class ReadRefused(Notification, frozen=True):
    """This node does not lead: ask the one that does."""

    token: int
    leader: int | None


class LeaderChanged(Notification, frozen=True):
    """The node that leads as far as is known here."""

    leader: int | None


class MembershipChanged(Notification, frozen=True):
    """From this slot on these nodes decide."""

    first_slot: int
    membership: Membership


class MembershipConfirmed(Notification, frozen=True, tag="MembershipSettled"):
    """A majority of these voters has on its disk that they decide: anyone who is not among them may be switched off."""

    first_slot: int
    membership: Membership


# Later: to ourselves.


class ElectionDue(Timer, frozen=True):
    """Nothing was heard from a leader for long enough to try it ourselves."""


class BeatDue(Timer, frozen=True):
    """Time to say again what has not been answered, and to be heard."""


# What the runtime is told to do, and what it tells, beside what every stack knows.


class Received(Event, frozen=True):
    """A message came from a replica, which may be this one."""

    node: int
    message: AnyMessage
    claim: Claim | None = None
    """What the sender says of itself. None: it is this node, or of an older version."""


class Send(Effect, frozen=True):
    """Send a message to some replicas. One to the node itself comes back to it as `Received`."""

    nodes: tuple[int, ...]
    message: AnyMessage


class Persist(Effect, frozen=True):
    """Append these records; once they and all that were given before them are on disk, send these answers.

    Without records it still waits for the earlier ones, because the answers speak of them.
    """

    records: tuple[Record, ...]
    answers: tuple[Send, ...] = ()
