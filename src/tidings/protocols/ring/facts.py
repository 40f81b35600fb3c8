"""Everything that ranges hold beside stored batches, as a list of small records in a fixed order.

A transfer is frozen, so its list of facts is always the same, and a place in the list says how much of it somebody has:
first the topics by name, then clients by name; of each topic its edges first, then ids, publishers' tracks,
subscriptions and groups, what is staged for it, and which batches were published under its name. A long list of ids or
of a track's runs is cut into several records.

Of clients there are those whose home is in the ranges, and all others that have had more than one session: an older one
of them must not be let in by the target because its successor left nothing in the topics that are given. What the
source learns of these while it gives is about other topics, so it does not matter if it comes too late for the list.
"""

from __future__ import annotations

import msgspec

from tidings.protocols.broker.consumer_groups.groups import GroupState
from tidings.protocols.broker.staged import Query
from tidings.protocols.broker.subscriptions import Subscription
from tidings.protocols.fields import Name, Noted, Number


class Mark(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A place in the list of facts: before the record `index` of a topic or a client."""

    kind: Number
    name: Name
    index: Number


TOPICS, CLIENTS, ENDED = 0, 1, 2
START = Mark(TOPICS, "", 0)
END = Mark(ENDED, "", 0)


class Edges(msgspec.Struct, frozen=True, array_like=True, tag="edges"):
    """A topic, without what it holds. All its batches, up to `next_offset`, have to be here before."""

    topic: str
    first_offset: int
    next_offset: int
    acked_offset: int
    used_at_ms: int
    max_backlog: int | None = None
    fully_acked_offset: int = 0


class Retired(msgspec.Struct, frozen=True, array_like=True, tag="retired"):
    """A topic that was collected; with an offset of 0, one that was not even that, but publishers remember it."""

    topic: str
    next_offset: int


class Ids(msgspec.Struct, frozen=True, array_like=True, tag="ids"):
    """Some of the ids that a topic has taken: when, which, and by the message at which offset."""

    topic: str
    ids: tuple[tuple[int, str, int], ...]


class Staged(msgspec.Struct, frozen=True, array_like=True, tag="staged"):
    """A batch of a stage for a topic; its body follows the facts, behind those of the staged batches before."""

    topic: str
    name: str
    query: str
    batch: int
    sink: str
    at_ms: int
    last: int
    """The number of the last batch that this stage has for the topic."""
    index: int
    """How many came before."""
    count: int
    size_bytes: int
    ids: tuple[str | None, ...] | None = None


class Published(msgspec.Struct, frozen=True, array_like=True, tag="published"):
    """The last batch of a query's sink. It is listed where a topic of the name of the sink, or the query, would be."""

    key: str
    query: Query


class Known(msgspec.Struct, frozen=True, array_like=True):
    """A client as far as any owner of a topic has to know it."""

    name: str
    epoch: int
    anonymous: bool


class Runs(msgspec.Struct, frozen=True, array_like=True, tag="runs"):
    """Some runs of a publisher's track in a topic; the columns are those of a `Track`."""

    topic: str
    client: Known
    last: int
    sequences: bytes
    offsets: bytes
    counts: bytes
    continued: bool
    """They follow those of the record before."""


class Reader(msgspec.Struct, frozen=True, array_like=True, tag="reader"):
    """A subscription, or a part of one. It is listed with the last of its topics; all of them lie at the same point."""

    client: Known
    subscription: Subscription


class Sharers(msgspec.Struct, frozen=True, array_like=True, tag="sharers"):
    """A consumer group and its members."""

    group: GroupState
    clients: tuple[Known, ...]


class Home(msgspec.Struct, frozen=True, array_like=True, tag="home"):
    """A client whose epochs are given by the owner of the ranges."""

    client: Known
    token: bytes
    past_tokens: tuple[bytes, ...]
    noted: Noted | None = None
    """The groups that are told of a new epoch; None, as from an older release, if that has to be all of them."""


class Epoch(msgspec.Struct, frozen=True, array_like=True, tag="epoch"):
    """A client whose older sessions are fenced."""

    client: Known


Fact = Edges | Retired | Ids | Runs | Reader | Sharers | Home | Epoch | Staged | Published
