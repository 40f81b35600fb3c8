"""Consumer groups, as the journal knows them: their members, and what they have dealt with.

Who works on which lane is not here: that is decided anew whenever it has to be (`lanes`), and after a restart
from what the members say they have in hand. What has been settled is journaled and never given out again.
"""

from __future__ import annotations

import msgspec

from tidings.protocols.broker.messages import LaneKind
from tidings.protocols.broker.progress import Progress, State

GroupKey = tuple[str, str]
"""The group's name and its topic."""


RESTING = 0
"""The epoch of a member whose session ended in good order: it has nothing in hand."""


class Group:
    """One group on one topic."""

    __slots__ = ("empty_since_ms", "lanes", "members", "name", "progress", "topic")

    def __init__(self, name: str, topic: str, lanes: LaneKind, progress: Progress, empty_since_ms: int) -> None:
        self.name = name
        self.topic = topic
        self.lanes: LaneKind = lanes
        self.progress = progress
        self.members: dict[str, int] = {}
        """client -> the epoch in which it joined, or RESTING."""
        self.empty_since_ms = empty_since_ms

    @property
    def key(self) -> GroupKey:
        return (self.name, self.topic)

    def state(self) -> GroupState:
        """What a snapshot keeps."""
        return GroupState(self.name, self.topic, self.lanes, self.progress.encode(), self.members, self.empty_since_ms)


class GroupState(msgspec.Struct, frozen=True, array_like=True):
    name: str
    topic: str
    lanes: LaneKind
    progress: State
    members: dict[str, int]
    empty_since_ms: int

    def restore(self) -> Group:
        group = Group(self.name, self.topic, self.lanes, Progress.decode(self.progress), self.empty_since_ms)
        group.members = dict(self.members)
        return group
