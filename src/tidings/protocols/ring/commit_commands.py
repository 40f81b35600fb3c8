"""What groups write into their journals for a commit over several of them (`commits` says what it does).

All of these can be repeated without harm. The bodies of a `HoldPart` follow the command in the same record.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidings.protocols.broker.bulk import StageName
from tidings.protocols.broker.commands import BatchWrite, OwnershipCommand
from tidings.protocols.broker.messages import Acknowledgement, Stored
from tidings.protocols.fields import Name, Number, Several
from tidings.protocols.ring.key_ranges import KeyRanges
from tidings.protocols.ring.messages import GroupDescriptor

COMMIT_ID_BYTES = 16

CommitId = Annotated[bytes, msgspec.Meta(min_length=COMMIT_ID_BYTES, max_length=COMMIT_ID_BYTES)]
"""Drawn at random for each try: what is sent again is another commit, and the sequence numbers tell the same by it."""

StoredParts = Several[Several[Stored]]
"""For each batch of a part, where it went in each of its topics."""


class Publishing(msgspec.Struct, frozen=True, array_like=True):
    """Stages that a commit makes visible, for a batch of a query. Its `client` is then the query's sink."""

    client: Name
    """Who has asked for it."""
    query: Name
    batch: Number
    sink: Name
    once: bool
    stages: Several[StageName]
    ranges: KeyRanges = ()
    """Whose topics a group publishes."""

    @property
    def topics(self) -> dict[str, None]:
        """All that are named, in their order."""
        return {topic: None for named in self.stages for topic in named.topics}


class StagedPart(msgspec.Struct, frozen=True, array_like=True):
    """What a group has of a stage: how many messages, for which topics."""

    name: Name
    count: Number
    topics: Several[Name]


class BeginCommit(OwnershipCommand, frozen=True, array_like=True, tag="begin-commit"):
    """The coordinator is about to ask these groups for their parts. What has not begun is never decided."""

    commit: CommitId
    client: Name
    epoch: Number
    groups: Several[GroupDescriptor]
    publishing: Publishing | None = None


class DecideCommit(OwnershipCommand, frozen=True, array_like=True, tag="decide-commit"):
    """The coordinator's decision. The first one counts, and what it does not know does not happen."""

    commit: CommitId
    client: Name
    happens: bool
    topics: Several[Name] = ()
    """Where published stages go."""


class EndCommit(OwnershipCommand, frozen=True, array_like=True, tag="end-commit"):
    """All groups have carried out their parts: the coordinator forgets the commit."""

    commit: CommitId
    client: Name


class PartWrite(BatchWrite, frozen=True, array_like=True):
    """A batch as one owner gets it: for its own topics."""

    other_topics: Several[Name] = ()
    """Topics of other owners to which the same messages go."""


class HoldPart(OwnershipCommand, frozen=True, array_like=True, tag="hold-part"):
    """What a commit is to change here, out of sight until it is known whether it happens."""

    commit: CommitId
    client: Name
    epoch: Number
    batches: Several[PartWrite]
    acknowledgements: Several[Acknowledgement]
    publishing: Publishing | None = None


class ResolvePart(OwnershipCommand, frozen=True, array_like=True, tag="resolve-part"):
    """The coordinator's decision has come: the part is carried out, or dropped."""

    commit: CommitId
    client: Name
    happens: bool


CommitCommand = BeginCommit | DecideCommit | EndCommit | HoldPart | ResolvePart
