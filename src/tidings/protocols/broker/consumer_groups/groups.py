"""Consumer groups, as the journal knows them: their members, and what they have dealt with.

Who works on which lane is not here: that is decided again whenever it has to be (`lanes`), and after a restart
from what the members say they have in flight. What has been acked is journaled and never given out again.
"""

from __future__ import annotations

from array import array
from typing import TypeAlias

import msgspec

from tidings.protocols.broker.consumer_groups.progress import Progress, State
from tidings.protocols.broker.messages import LaneKind

Ranges = tuple[tuple[int, int], ...]
Acked: TypeAlias = "tuple[Ranges, array[int]]"
"""Half-open ranges of offsets, and offsets that stand alone: what one ack was about."""

GroupKey = tuple[str, str]
"""The group's name and its topic."""


PAUSED = 0
"""The epoch of a member whose session ended in good order: it has nothing in flight."""


class Group:
    """One group on one topic."""

    __slots__ = ("empty_since_ms", "lanes", "last_acked", "members", "name", "progress", "start", "topic")

    def __init__(
        self,
        name: str,
        topic: str,
        lanes: LaneKind,
        progress: Progress,
        empty_since_ms: int,
        start: int | None,
    ) -> None:
        self.name = name
        self.topic = topic
        self.lanes: LaneKind = lanes
        self.progress = progress
        self.members: dict[str, int] = {}
        """client -> the epoch in which it joined, or RESTING."""
        self.last_acked: dict[str, Acked] = {}
        """client -> what its last ack was about. It sends the next one only when it knows what became of this
        one; so a member whose answer was lost can be told whether it was its own ack that counted."""
        self.empty_since_ms = empty_since_ms
        self.start = start
        """The offset of the first message that was meant for it; None if a release before 0.2 made it."""

    @property
    def key(self) -> GroupKey:
        return (self.name, self.topic)

    def state(self) -> GroupState:
        """What a snapshot keeps."""
        return GroupState(
            self.name,
            self.topic,
            self.lanes,
            self.progress.encode(),
            self.members,
            self.empty_since_ms,
            {client: (ranges, list(offsets)) for client, (ranges, offsets) in self.last_acked.items()},
            self.start,
        )


class GroupState(msgspec.Struct, frozen=True, array_like=True):
    name: str
    topic: str
    lanes: LaneKind
    progress: State
    members: dict[str, int]
    empty_since_ms: int
    last_acked: dict[str, tuple[Ranges, list[int]]] = {}
    start: int | None = None

    def restore(self) -> Group:
        progress = Progress.decode(self.progress)
        group = Group(self.name, self.topic, self.lanes, progress, self.empty_since_ms, self.start)
        group.members = dict(self.members)
        group.last_acked = {
            client: (ranges, array("Q", offsets)) for client, (ranges, offsets) in self.last_acked.items()
        }
        return group
