"""Stages: batches that are stored and not yet visible, and the one step that makes them so.

An attempt to write (a task of a Spark job, say) stores its batches under a name of its own, numbered from 1, so
that a request which is sent twice stores nothing twice. `Publish` names the stages of the attempts that succeeded.
Their bodies stay where they lie in the journal: only the indexes of their topics grow, all in one record. For each
sink of a query the number of its last batch is remembered, so a batch that is published again changes nothing.

What nobody publishes goes with the next batch of its query, or when it has grown old.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tidings.errors import InvalidRequest, LimitReached, OutOfSequence
from tidings.protocols.broker.bulk import Extent
from tidings.protocols.broker.commands import CarriedStage, Discard, Publish
from tidings.protocols.broker.commands import Stage as StageCommand
from tidings.protocols.broker.state import State
from tidings.protocols.broker.topics import Place
from tidings.protocols.broker.writing import check_backlog, plan_ids

RECORD_BYTES = 128
"""Counted for each batch of a stage beside its body, so that tiny ones have a bound too."""


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


class Entry(msgspec.Struct):
    """What a staged batch will add to its topic, worked out before anything is changed."""

    staged: StagedBatch
    kept: tuple[int, ...] | None
    ids: list[tuple[str, int]]
    count: int


class Stages:
    """Everything that is staged, and what has been published."""

    def __init__(self) -> None:
        self.stages: dict[str, Stage] = {}
        self.queries: dict[str, Query] = {}
        self._of_query: dict[str, dict[str, Stage]] = {}

    def is_published(self, query: str, batch: int, sink: str = "") -> bool:
        """Whether this batch of the query, or a later one, has been published for this sink."""
        last, shared = self.queries.get(sink_key(query, sink)), self.queries.get(query)
        if shared is not None and shared.topics is None and batch <= shared.batch:
            return True
        return last is not None and batch <= last.batch

    def topics_of(self, query: str, batch: int, sink: str = "") -> tuple[str, ...] | None:
        """The topics that a batch which is published went to, None if that is not known any more."""
        last = self.queries.get(sink_key(query, sink))
        return last.topics if last is not None and last.batch == batch else None

    # Storing.

    def check(self, machine: State, command: StageCommand) -> None:
        """Raises what speaks against storing this batch of a stage."""
        settings = machine.settings
        stage = self.stages.get(command.stage)
        if stage is None:
            if command.number != 1:
                raise OutOfSequence(
                    f"The stage {command.stage!r} is not there, and number {command.number} was sent to it: "
                    "begin again under a new name."
                )
            if len(self.stages) >= settings.stages_max:
                raise LimitReached(f"There are already {settings.stages_max} stages (stages_max): raise the limit.")
            size_bytes = 0
        else:
            if (stage.key, stage.batch) != (sink_key(command.query, command.sink), command.batch):
                raise InvalidRequest(
                    f"The stage {command.stage!r} belongs to batch {stage.batch} of {stage.query!r}: "
                    "give each attempt a name of its own."
                )
            if command.number > len(stage.batches) + 1:
                raise OutOfSequence(
                    f"The stage {command.stage!r} was sent number {command.number}, and {len(stage.batches) + 1} is "
                    "the next: begin again under a new name."
                )
            size_bytes = stage.size_bytes
        if size_bytes + command.size_bytes + RECORD_BYTES > settings.stage_bytes_max:
            raise LimitReached(
                f"The stage {command.stage!r} would be larger than {settings.stage_bytes_max} bytes "
                "(stage_bytes_max): write with more tasks, or raise the limit."
            )

    def add(self, machine: State, command: StageCommand, time_ms: int, address: int) -> bool:
        """Stores a batch; whether its query's batch was published before, so that nothing was stored."""
        if self.is_published(command.query, command.batch, command.sink):
            return True
        stage = self.stages.get(command.stage)
        if stage is not None and command.number <= len(stage.batches):
            return False
        self.check(machine, command)
        if stage is None:
            stage = Stage(command.stage, command.query, command.batch, time_ms, 0, [], command.sink)
            self._remember(stage)
        stage.batches.append(StagedBatch(command.topic, address, command.size_bytes, command.count, command.ids))
        stage.size_bytes += command.size_bytes + RECORD_BYTES
        stage.at_ms = max(stage.at_ms, time_ms)
        return False

    def _remember(self, stage: Stage) -> None:
        self.stages[stage.name] = stage
        self._of_query.setdefault(stage.key, {})[stage.name] = stage

    def _drop(self, stage: Stage) -> None:
        del self.stages[stage.name]
        named = self._of_query[stage.key]
        del named[stage.name]
        if not named:
            del self._of_query[stage.key]

    # Publishing.

    def publish(self, machine: State, command: Publish, time_ms: int) -> tuple[Extent, ...] | None:
        """Makes stages visible and says where their messages went; None if that batch had been published."""
        if self.is_published(command.query, command.batch, command.sink):
            return None
        settings, key = machine.settings, sink_key(command.query, command.sink)
        if key not in self.queries and len(self.queries) >= settings.queries_max:
            raise LimitReached(
                f"{settings.queries_max} queries are remembered (queries_max): raise the limit, or remember them "
                "for a shorter time (query_age_ms)."
            )
        entries, nexts = self._plan(machine, self._named(command), time_ms)
        firsts: dict[str, int] = {}
        for entry in entries:
            staged = entry.staged
            topic = machine.topics.get(staged.topic) or machine.make_topic(staged.topic, time_ms)
            firsts.setdefault(topic.name, topic.next_offset)
            if entry.count:
                topic.append(staged.address, staged.size_bytes, entry.count, entry.kept, None, time_ms)
            topic.remember_ids(entry.ids, time_ms)
            machine.used_at_ms[topic.name] = time_ms
        self.queries[key] = Query(command.batch, time_ms, command.once, tuple(firsts))
        for stage in list(self._of_query.get(key, {}).values()):
            if stage.batch <= command.batch:
                self._drop(stage)
        return tuple(Extent(name, first, nexts[name]) for name, first in firsts.items())

    def _named(self, command: Publish) -> list[Stage]:
        found: dict[str, Stage] = {}
        for named in command.stages:
            stage = self.stages.get(named.name)
            if stage is None and not named.count:
                continue  # An attempt without any message has stored nothing.
            key = sink_key(command.query, command.sink)
            if stage is None or (stage.key, stage.batch) != (key, command.batch):
                raise InvalidRequest(
                    f"The stage {named.name!r} of batch {command.batch} of {command.query!r} is not there: "
                    "it was discarded, or has grown too old (stage_age_ms). Write that batch again."
                )
            if stage.count != named.count or named.name in found:
                raise InvalidRequest(
                    f"The stage {named.name!r} holds {stage.count} messages and {named.count} were to be published: "
                    "name each finished stage once."
                )
            found[named.name] = stage
        return list(found.values())

    def _plan(self, machine: State, stages: Iterable[Stage], time_ms: int) -> tuple[list[Entry], dict[str, int]]:
        """What each batch will add, and where each topic will end; raises if any of it is refused."""
        entries: list[Entry] = []
        nexts: dict[str, int] = {}
        fresh: dict[tuple[str, str], int] = {}
        batches = [staged for stage in stages for staged in stage.batches]
        for name in dict.fromkeys(staged.topic for staged in batches):
            machine.check_puttable(name)
            topic = machine.topics.get(name)
            nexts[name] = topic.next_offset if topic else machine.retired.get(name, 0)
        machine.check_topics_limit(sum(name not in machine.topics for name in nexts))
        for staged in batches:
            entry = Entry(staged, None, [], staged.count)
            if staged.ids is not None:
                entry.kept, entry.ids = plan_ids(
                    machine, staged.topic, staged.ids, 0, nexts[staged.topic], time_ms, fresh, []
                )
                if entry.kept is not None:
                    entry.count = len(entry.kept)
            nexts[staged.topic] += entry.count
            entries.append(entry)
        if machine.settings.max_backlog is not None:
            for name, following in nexts.items():
                check_backlog(machine, name, following, machine.settings.max_backlog)
        return entries, nexts

    # Dropping.

    def discard(self, command: Discard) -> int:
        """Drops stages and forgets queries, as far as they are there; how many stages were."""
        found = [self.stages[name] for name in dict.fromkeys(command.stages) if name in self.stages]
        for stage in found:
            self._drop(stage)
        for name in command.queries:
            query = self.queries.get(name)
            if query is not None and query.at_ms < command.before_ms:
                del self.queries[name]
        return len(found)

    def discard_due(self, machine: State, now_ms: int) -> list[Discard]:
        """The commands that drop what has grown old; empty when nothing has."""
        settings = machine.settings
        staged_before_ms, asked_before_ms = now_ms - settings.stage_age_ms, now_ms - settings.query_age_ms
        stages = tuple(stage.name for stage in self.stages.values() if stage.at_ms < staged_before_ms)
        once = tuple(name for name, each in self.queries.items() if each.once and each.at_ms < staged_before_ms)
        silent = tuple(name for name, each in self.queries.items() if not each.once and each.at_ms < asked_before_ms)
        due = []
        if stages or once:
            due.append(Discard(stages, once, staged_before_ms))
        if silent:
            due.append(Discard((), silent, asked_before_ms))
        return due

    # Where the bodies lie.

    def places(self) -> Iterable[tuple[CarriedStage, Place]]:
        """Every staged body, in no order that matters."""
        for stage in self.stages.values():
            for number, staged in enumerate(stage.batches, 1):
                carried = CarriedStage(stage.name, number, staged.size_bytes, staged.address)
                yield carried, Place(staged.address, staged.size_bytes)

    def carry(self, carried: CarriedStage, address: int) -> None:
        """A body has been copied to `address`; nothing happens if it was published or dropped meanwhile."""
        stage = self.stages.get(carried.stage)
        if stage is not None and carried.number <= len(stage.batches):
            staged = stage.batches[carried.number - 1]
            if staged.address == carried.address:  # Another attempt may have taken the name since.
                staged.address = address

    # Snapshots.

    def state(self) -> StagesState:
        """Everything, for a snapshot."""
        return StagesState(list(self.stages.values()), self.queries)

    def restore(self, state: StagesState) -> None:
        """Takes everything from a snapshot."""
        self.queries = dict(state.queries)
        for stage in state.stages:
            self._remember(stage)
