"""What is said by those who work in bulk: readers of any range of offsets, and writers whose batches are staged.

*Reading a range* needs no subscription and moves nothing: stored batches are forwarded as they are, and the
same question gets the same answer for as long as retention leaves the messages there.

*Staging* is for writers that are repeated when they fail, such as the tasks of a Spark job. Each attempt stores its
batches under a name of its own, where nobody sees them. One `Publish` then makes the stages of the attempts that
succeeded visible, all of them or none, once for each number of a query's batches.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidings.protocols.broker.envelope import Answer, Request
from tidings.protocols.fields import Name, Number, Several


class Read(Request, frozen=True, tag="read"):
    """Stored batches that hold the offsets from `first_offset` up to `end_offset` of a topic; no session is needed.

    The answer ends at the bounds, but holds one batch at least if there is one.
    """

    topic: Name
    first_offset: Number
    end_offset: Number
    messages: Number
    size_bytes: Number
    boot: Name = ""
    """The boot of the reader's machine, if it can read files there: a broker on the same one may then point to bodies.
    """


class StoredBatch(msgspec.Struct, frozen=True, array_like=True):
    """A stored batch: where it begins, how many messages it has, and when it was stored (0: not known)."""

    first_offset: int
    count: int
    stored_ms: int


class LocalFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of the broker's journal, and its number on its device, by which a reader knows that it is the same."""

    path: str
    device: int
    inode: int


LOCAL_BLOCK_BYTES = 64 * 1024
"""A file is checked in blocks of this size, counted from its beginning; the last one may be shorter."""
LOCAL_BYTES_MAX = 64 * 1024 * 1024
"""A larger body is sent."""


class LocalBody(msgspec.Struct, frozen=True, array_like=True):
    """Where a body lies: in which of the files, and at which of its bytes; what its blocks have to be checked by."""

    file: int
    position: int
    size_bytes: int
    sums: Annotated[bytes, msgspec.Meta(max_length=4 * (LOCAL_BYTES_MAX // LOCAL_BLOCK_BYTES + 2))] = b""
    """The CRC-32 of each block that has a byte of it, 4 bytes each, little-endian. Without, it has to be sent."""


class ReadDone(Answer, frozen=True, tag="range"):
    """One body frame for each batch, and what the topic holds: `low_offset` up to `next_offset`.

    The first batch may begin before what was asked for, and the last may end behind it.
    """

    low_offset: int
    next_offset: int
    batches: tuple[StoredBatch, ...]
    files: tuple[LocalFile, ...] = ()
    local: tuple[LocalBody | None, ...] = ()
    """For a reader on the same machine, if it asked for that: where each batch lies. Only bodies without such a place
    come as frames.
    """


class AskOffset(Request, frozen=True, tag="offset"):
    """The first offset of a topic that was stored at or after a time; no session is needed."""

    topic: Name
    time_ms: Number


class OffsetFound(Answer, frozen=True, tag="offset"):
    """The offset, which is `next_offset` when nothing was stored so late."""

    offset: int
    low_offset: int
    next_offset: int


class Stage(Request, frozen=True, tag="stage"):
    """Stores one batch (one body frame) for a topic under a stage's name, without making it visible.

    The batches of a stage are numbered from 1; a number that is there already is not stored again.
    """

    client: Name
    epoch: Number
    query: Name
    batch: Number
    stage: Name
    number: Number
    topic: Name
    count: Number
    sink: Name = ""
    """Which of the query's sinks it is for: each has batches of its own."""
    after: Number | None = None
    """The number before this one among those of the same topic, 0 for its first: of a stage, each group of a ring has
    only the batches for its own topics.
    """


class StageDone(Answer, frozen=True, tag="staged"):
    """The batch is stored; or nothing was, because that batch of the query is `published` already."""

    published: bool = False


TOPICS_NAMED_MAX = 64
"""Of a stage with more topics none is named."""


class StageName(msgspec.Struct, frozen=True, array_like=True):
    """A finished stage, and how many messages it must have."""

    name: Name
    count: Number
    topics: Several[Name] = ()
    """Where they are to go. A ring asks only the owners of these; without, all groups."""


def name_stage(name: str, count: int, topics: tuple[str, ...]) -> StageName:
    """A finished stage, with its topics if they are few."""
    return StageName(name, count, topics if len(topics) <= TOPICS_NAMED_MAX else ())


class Publish(Request, frozen=True, tag="publish"):
    """Makes these stages visible in their topics, in this order, unless the query's batch has been published before.

    Everything else that was staged for this or an earlier batch of the query is dropped. `once` says that the query
    has only this one batch: it is remembered for as long as a stage is, and not for as long as a query.
    """

    client: Name
    epoch: Number
    query: Name
    batch: Number
    stages: Several[StageName]
    once: bool = False
    sink: Name = ""


class Extent(msgspec.Struct, frozen=True, array_like=True):
    """The messages of a topic from `first_offset` up to `next_offset`."""

    topic: Name
    first_offset: Number
    next_offset: Number


class PublishDone(Answer, frozen=True, tag="published"):
    """Where the messages went; `repeated` says that this batch had been published before, and nothing has changed."""

    repeated: bool
    extents: tuple[Extent, ...] = ()
    topics: tuple[str, ...] | None = None
    """If it is repeated: the topics that the batch went to, None if that is not known any more."""


class Discard(Request, frozen=True, tag="discard"):
    """Drops stages that nobody will publish; those that are not there, or are published, are passed over."""

    client: Name
    epoch: Number
    stages: Several[Name]


class DiscardDone(Answer, frozen=True, tag="discarded"):
    """How many of them were dropped."""

    count: int
    stages: tuple[str, ...] = ()
    """Which, if this is a group of a ring: others may have dropped the rest of the same ones."""


BulkRequest = Read | AskOffset | Stage | Publish | Discard
BulkAnswer = ReadDone | OffsetFound | StageDone | PublishDone | DiscardDone
