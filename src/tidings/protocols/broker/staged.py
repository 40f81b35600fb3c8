"""What is staged and what was published, as tables and snapshots of a broker hold it; `stages` says what it means."""

from __future__ import annotations

import msgspec

from tidings.errors import InvalidRequest
from tidings.protocols.broker.bulk import StageName

RECORD_BYTES = 128
"""Counted for each batch of a stage beside its body, so that tiny ones have a bound too."""


HELD = -1
"""The batch of bodies that are of no query, and stay until they are let go."""


class StagedBatch(msgspec.Struct, array_like=True):
    """A stored body that waits to become part of a topic."""

    topic: str
    address: int
    size_bytes: int
    count: int
    ids: tuple[str | None, ...] | None = None


class Stage(msgspec.Struct, array_like=True):
    """What one attempt has stored for a batch of a query."""

    name: str
    query: str
    batch: int
    at_ms: int
    """When its last batch was stored."""
    size_bytes: int
    batches: list[StagedBatch]
    sink: str = ""
    last: int = 0
    """The number of its last batch, if it is what a stage has for one topic; 0 if its batches are counted from 1."""
    held: bool = False
    """Whether a commit over several groups is about to publish it."""

    @property
    def label(self) -> str:
        """The name that its writer has given it."""
        return self.name.partition("\n")[0]

    @property
    def last_number(self) -> int:
        return self.last or len(self.batches)

    @property
    def key(self) -> str:
        """The sink of a query that it is for."""
        return sink_key(self.query, self.sink)

    @property
    def count(self) -> int:
        """How many messages it has."""
        return sum(each.count for each in self.batches)


def sink_key(query: str, sink: str) -> str:
    """The name under which the batches of a query's sink are counted. No query has such a name: it is not printable."""
    return f"{query}\n{sink}" if sink else query


def home_name(key: str) -> str:
    """Where in a ring it is remembered what was published for a sink of a query: where a topic of this name lies."""
    query, _, sink = key.partition("\n")
    return sink or query


def kept_name(label: str, topic: str) -> str:
    """The name of what a stage has for one topic, if that is kept apart."""
    return f"{label}\n{topic}"


class Query(msgspec.Struct, frozen=True, array_like=True):
    """The last batch that was published for a sink of a query, and when."""

    batch: int
    at_ms: int
    once: bool
    topics: tuple[str, ...] | None = None
    """Where it went. None if it was published when a query's sinks were not told apart: it then counts for all."""


class StagesState(msgspec.Struct, frozen=True, array_like=True):
    """All stages and queries, as a snapshot holds them."""

    stages: list[Stage] = []
    queries: dict[str, Query] = {}


def check_named(named: StageName, query: str, batch: int, count: int, is_there: bool) -> None:
    """Raises unless a stage is there with all of its messages."""
    if not is_there:
        raise InvalidRequest(
            f"The stage {named.name!r} of batch {batch} of {query!r} is not there: "
            "it was discarded, or has grown too old (stage_age_ms). Write that batch again."
        )
    if count != named.count:
        raise miscounted(named, count)


def miscounted(named: StageName, count: int) -> InvalidRequest:
    """A stage is not what was to be published, or was named twice."""
    return InvalidRequest(
        f"The stage {named.name!r} holds {count} messages and {named.count} were to be published: "
        "name each finished stage once."
    )
