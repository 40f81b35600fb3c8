"""The nouns of a group at work: members, lanes, batches, and what may be said about them.

A *lane* is the messages of one key. A *batch* is what a member is sent at once; while any of its messages is
unacked it is in *flight*. A *ack* is messages whose end is being written to the journal. A *hold*
is a lane's waiting room while nobody may be sent more of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec

from tidings.errors import Fenced
from tidings.settings.checks import check_above_zero

LANE_WEIGHT = 8
"""How many messages a lane weighs, beside those in it. A lane binds its member for as long as its messages keep
coming, and cannot be shared; so a member with many lanes is busier than its messages of this moment show."""

OrderingKey = bytes | tuple[str, bytes]
"""The key of a message, or its publisher and its key (`lanes="publisher"`)."""

ENDLESS = 1 << 60
"""The count of a lane that stands in for messages without a key."""


class Stale(Fenced):
    """The work was taken from this member in the meantime: what it made of it does not count."""


class LaneSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bounds of a group's work."""

    window_messages_max: int = 100_000
    """Messages offered and not yet acked."""
    batch_messages_max: int = 1_000
    """Messages sent to a member at once."""
    lane_weight: int = LANE_WEIGHT
    deliveries_max: int = 3
    """A member that was sent a batch so often without acking any of it counts as inactive."""
    redelivery_ms: int = 30_000
    """A batch on which nothing happens for this long is sent again."""
    delayed_ack_ms: int = 300
    """An ack later than this is counted, and nothing else comes of it."""
    slow_ack_ms: int = 5_000
    """An ack is slow when it came later than this after its batch, or after the one before it."""
    slow_acks_max: int = 3
    """So many slow acks within the window make a member slow."""
    slow_window_ms: int = 60_000
    attempts_max: int | None = None
    """A message that failed so often is not sent again but handed out by `exhausted`; None tries for ever."""
    finished_max: int = 10_000
    """Batches remembered as acked, so that a repeated ack is not called stale."""

    def __post_init__(self) -> None:
        check_above_zero(self)


class PickedBatch(msgspec.Struct, frozen=True):
    """What to send to a member now. A batch that is sent again keeps its number and its attempt."""

    number: int
    member: str
    offsets: Sequence[int]
    """Rising."""
    attempt: int
    """1 for messages that nobody can have worked on."""


class PendingAck:
    """Messages that a member has finished, until the journal has them or has refused them."""

    __slots__ = ("attempt", "holder", "lanes", "member", "number", "offsets", "open", "refused")

    def __init__(
        self,
        holder: Member | None,
        number: int,
        attempt: int,
        offsets: Sequence[int],
        lanes: list[Lane],
        refused: list[int],
    ) -> None:
        self.member = holder.name if holder is not None else ""
        self.number = number
        """The batch; 0 when these are messages that failed too often."""
        self.attempt = attempt
        self.offsets = offsets
        """Accepted: to be journaled as done. Empty when this repeats an earlier ack."""
        self.refused = refused
        """Taken back from this batch in the meantime: what the member made of them must be dropped."""
        self.holder = holder
        self.lanes = lanes
        self.open = True


class MemberInactive(msgspec.Struct, frozen=True):
    member: str
    why: str


class MemberSlow(msgspec.Struct, frozen=True):
    """Its waiting lanes go to the others."""

    member: str
    lanes: int


class LanesMoved(msgspec.Struct, frozen=True):
    """Lanes given to a member that had more room than the others, at once or once they have drained."""

    member: str
    at_once: int
    drained_first: int


Notice = MemberInactive | MemberSlow | LanesMoved


class MemberState(msgspec.Struct, frozen=True):
    member: str
    active: bool
    slow: bool
    room: int
    lanes: int
    in_flight: int
    waiting: int
    delays: tuple[int, int, int] = (0, 0, 0)
    """Acks that were delayed, those of them that were slow and still count, and the longest in milliseconds."""


class GroupState(msgspec.Struct, frozen=True):
    members: list[MemberState]
    lanes: int
    """Lanes with something unacked that has reached a member, or waits for a reason."""
    moving: int
    """Lanes that nobody is sent more of at the moment: they drain, or wait out a delay."""
    unbound: int
    """Messages that wait for a member with room."""
    unacked: int
    moved_lanes: int
    """How often a lane went from one member to another with work in it."""
    evened_lanes: int
    """How many of those moves were made to even out the load, as after a join."""


class Hold:
    """A lane's waiting room while nobody may be sent more of it."""

    __slots__ = ("lined_up", "queue", "ready_ms", "source", "target")

    def __init__(self, source: str | None) -> None:
        self.queue: list[int] = []
        """Rising."""
        self.source = source
        self.target: Member | None = None
        self.ready_ms = 0
        """Not before this time; 0 when there is no such wait."""
        self.lined_up = False
        """It stands in the line of lanes for which any member with room will do."""


class Lane:
    """The messages of one key that are on their way.

    Without a hold, `member` has all of them: `count` messages, waiting for its room, in flight or being
    acked, and it weighs on that member. With a hold, `count` are those that must end before anybody may
    be sent more; the others are in the hold, and it weighs on the hold's target if there is one.
    """

    __slots__ = ("count", "hold", "key", "member")

    def __init__(self, key: OrderingKey | None, member: Member | None, count: int) -> None:
        self.key = key
        self.member = member
        self.count = count
        self.hold: Hold | None = None


class Flight:
    """A batch on its way: what of it is unacked."""

    __slots__ = ("attempt", "deliveries", "lanes", "left", "number", "offsets", "refused", "since_ms")

    def __init__(self, number: int, attempt: int, offsets: Sequence[int], lanes: list[Lane], now_ms: int) -> None:
        self.number = number
        self.attempt = attempt
        self.deliveries = 1
        """How often this member was sent it without a sign."""
        self.offsets = offsets
        self.lanes = lanes
        """The lane of each offset. Both lists are good until `left` is there."""
        self.left: dict[int, Lane] | None = None
        """What is unacked, once that is less than the whole batch."""
        self.refused: list[int] = []
        self.since_ms = now_ms

    @property
    def unacked(self) -> dict[int, Lane]:
        """offset -> lane, to be changed in place."""
        if self.left is None:
            self.left = dict(zip(self.offsets, self.lanes, strict=True))
            self.offsets = []
            self.lanes = []
        return self.left

    @property
    def unacked_offsets(self) -> list[int]:
        return list(self.offsets) if self.left is None else list(self.left)


def no_offsets() -> array[int]:
    """Room for many offsets. Where tens of thousands wait, plain numbers close together are faster than objects."""
    return array("Q")


class Member:
    """One who works for the group."""

    __slots__ = (
        "acked_ms",
        "acked_number",
        "acks",
        "active",
        "burden",
        "delayed_acks",
        "fixed",
        "flights",
        "head",
        "in_flight",
        "keyless",
        "lanes",
        "longest_ms",
        "name",
        "newcomer",
        "offsets",
        "repeats",
        "repeats_mixed",
        "resend",
        "room",
        "slow",
        "slow_acks",
        "space",
        "waiting_mixed",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.active = True
        self.newcomer = True
        """The others' lanes have not been evened out with this one yet."""
        self.room = 0
        self.burden = 0
        """The weight of the lanes bound to this member."""
        self.keyless = Lane(None, self, ENDLESS)
        """Stands in for the lane of every message without a key: it never ends."""
        self.offsets = no_offsets()
        """Waiting for this member's room and never sent to anybody, from `head` on."""
        self.lanes: list[Lane] = []
        """The lane of each of them."""
        self.head = 0
        self.waiting_mixed = False
        """They have to be sorted first."""
        self.repeats: list[tuple[int, Lane]] = []
        """Waiting too, and to go out before those: they, or ones behind them in their lane, were sent before."""
        self.repeats_mixed = False
        self.flights: dict[int, Flight] = {}
        self.resend: dict[int, None] = {}
        """Batches to be sent again."""
        self.in_flight = 0
        self.acks: dict[PendingAck, None] = {}
        """Those of its acks on which the journal has not answered."""
        self.acked_number = 0
        self.acked_ms = 0
        self.slow = False
        self.slow_acks: list[int] = []
        self.delayed_acks = 0
        self.longest_ms = 0
        self.fixed = 0
        self.space = 0

    @property
    def waiting(self) -> int:
        return len(self.offsets) - self.head + len(self.repeats)

    @property
    def load(self) -> int:
        """What it has to do: messages, and the weight of its lanes."""
        return self.burden + self.in_flight + self.waiting

    @property
    def free(self) -> int:
        """How many messages more it has room for, 0 or less when it is full."""
        return self.room - self.in_flight - self.waiting

    def last_sign_ms(self, flight: Flight) -> int:
        """When something happened last that concerns this batch.

        Members work their batches off in turn: one that has just acked an earlier batch could not yet have
        acked this one. But if a later batch was acked meanwhile, this one may have got lost.
        """
        return max(flight.since_ms, self.acked_ms) if self.acked_number <= flight.number else flight.since_ms
