"""Stages: batches that are stored and not yet visible, and the one step that makes them so.

An attempt to write (a task of a Spark job, say) stores its batches under a name of its own, numbered from 1, so
that a request which is sent twice stores nothing twice. `Publish` names the stages of the attempts that succeeded.
Their bodies stay where they lie in the journal: only the indexes of their topics grow, all in one record. For each
sink of a query the number of its last batch is remembered, so a batch that is published again changes nothing.

What nobody publishes goes with the next batch of its query, or when it has grown old.

In a ring the topics of a stage may have several owners. So a group keeps what a stage has for each topic apart, as a
stage of its own with a name that no writer can give (`kept_name`), and it moves with its topic. Those that a commit
over several groups is about to publish are *held*: they stay as they are until that is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from tidings.errors import InvalidRequest, LimitReached, Moved, OutOfSequence
from tidings.protocols.broker.bulk import Extent, StageName
from tidings.protocols.broker.commands import CarriedStage, Discard, Publish
from tidings.protocols.broker.commands import Stage as StageCommand
from tidings.protocols.broker.staged import (
    HELD,
    RECORD_BYTES,
    Query,
    Stage,
    StagedBatch,
    StagesState,
    check_named,
    home_name,
    kept_name,
    miscounted,
    sink_key,
)
from tidings.protocols.broker.state import State
from tidings.protocols.broker.topics import Place
from tidings.protocols.broker.writing import check_backlog, plan_ids


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
        self._labelled: dict[str, dict[str, Stage]] = {}

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

    @property
    def count(self) -> int:
        """How many stages there are something of."""
        return len(self._labelled)

    # Storing.

    def check(self, machine: State, command: StageCommand) -> None:
        """Raises what speaks against storing this batch of a stage."""
        settings = machine.settings
        known = self._labelled.get(command.stage, {})
        for stage in known.values():
            if (stage.key, stage.batch) != (sink_key(command.query, command.sink), command.batch):
                raise InvalidRequest(
                    f"The stage {command.stage!r} belongs to batch {stage.batch} of {stage.query!r}: "
                    "give each attempt a name of its own."
                )
        if not known and len(self._labelled) >= settings.stages_max:
            raise LimitReached(f"There are already {settings.stages_max} stages (stages_max): raise the limit.")
        self._check_number(machine, command)
        if sum(each.size_bytes for each in known.values()) + command.size_bytes + RECORD_BYTES > (
            settings.stage_bytes_max
        ):
            raise LimitReached(
                f"The stage {command.stage!r} would be larger than {settings.stage_bytes_max} bytes "
                "(stage_bytes_max): write with more tasks, or raise the limit."
            )

    def _check_number(self, machine: State, command: StageCommand) -> None:
        stage = self.stages.get(self._name(machine, command))
        last = stage.last_number if stage is not None else 0
        if machine.ownership.shares_stages():
            is_next = command.after in (None, last)  # Clients of old do not say what came before.
        else:
            is_next = command.number == last + 1
        if is_next:
            return
        if stage is None:
            raise OutOfSequence(
                f"There is no stage {command.stage!r}, and number {command.number} was sent to it: "
                "begin again under a new name."
            )
        raise OutOfSequence(
            f"The stage {command.stage!r} was sent number {command.number}, and {last + 1} is "
            "the next: begin again under a new name."
        )

    def _name(self, machine: State, command: StageCommand) -> str:
        """Under which name a batch is kept."""
        return kept_name(command.stage, command.topic) if machine.ownership.shares_stages() else command.stage

    def add(self, machine: State, command: StageCommand, time_ms: int, address: int) -> bool:
        """Stores a batch; whether its query's batch was published before, so that nothing was stored."""
        if self.is_published(command.query, command.batch, command.sink):
            return True
        name = self._name(machine, command)
        stage = self.stages.get(name)
        if stage is not None and command.number <= stage.last_number:
            return False
        if any(part.held for part in self._labelled.get(command.stage, {}).values()):
            raise Moved(f"The stage {command.stage!r} is about to be published: ask again.")
        self.check(machine, command)
        if stage is None:
            stage = Stage(name, command.query, command.batch, time_ms, 0, [], command.sink)
            self._remember(stage)
        stage.batches.append(StagedBatch(command.topic, address, command.size_bytes, command.count, command.ids))
        stage.last = command.number
        stage.size_bytes += command.size_bytes + RECORD_BYTES
        stage.at_ms = max(stage.at_ms, time_ms)
        return False

    def split(self) -> None:
        """From now on what a stage has for each topic is kept apart."""
        for stage in list(self.stages.values()):
            if stage.batch == HELD or stage.name != stage.label:
                continue
            self._drop(stage)
            for number, staged in enumerate(stage.batches, 1):
                name = kept_name(stage.label, staged.topic)
                part = self.stages.get(name)
                if part is None:
                    part = Stage(name, stage.query, stage.batch, stage.at_ms, 0, [], stage.sink)
                    self._remember(part)
                part.batches.append(staged)
                part.last = number
                part.size_bytes += staged.size_bytes + RECORD_BYTES

    def load(self, stage: Stage) -> Stage:
        """What a stage has for one topic, as another group had it: as much as is here already, or nothing."""
        known = self.stages.get(stage.name)
        if known is None:
            self._remember(stage)
            return stage
        return known

    def forget(self, is_gone: Callable[[str], bool]) -> None:
        """What is staged for these topics is another group's."""
        for stage in [each for each in self.stages.values() if each.batch != HELD and is_gone(each.batches[0].topic)]:
            self._drop(stage)

    def topics(self) -> list[str]:
        """Where all that is staged is to go, perhaps repeated."""
        return [staged.topic for stage in self.stages.values() if stage.batch != HELD for staged in stage.batches]

    def hold(self, name: str, time_ms: int, sizes_bytes: Sequence[int], address: int) -> None:
        """Keeps the bodies of what somebody else knows more of, from an address on, until it is let go."""
        stage = Stage(name, "", HELD, time_ms, sum(sizes_bytes), [])
        for size_bytes in sizes_bytes:
            stage.batches.append(StagedBatch("", address, size_bytes, 0))
            address += size_bytes
        self._remember(stage)

    def let_go(self, name: str) -> list[int]:
        """Keeps those bodies no longer; where each lies by now."""
        stage = self.stages[name]
        self._drop(stage)
        return [staged.address for staged in stage.batches]

    def _remember(self, stage: Stage) -> None:
        self.stages[stage.name] = stage
        self._of_query.setdefault(stage.key, {})[stage.name] = stage
        if stage.batch != HELD:
            self._labelled.setdefault(stage.label, {})[stage.name] = stage

    def _drop(self, stage: Stage) -> None:
        del self.stages[stage.name]
        for table, key in ((self._of_query, stage.key), (self._labelled, stage.label)):
            named = table.get(key, {})
            named.pop(stage.name, None)
            if not named:
                table.pop(key, None)

    # Publishing.

    def publish(self, machine: State, command: Publish, time_ms: int) -> tuple[Extent, ...] | None:
        """Makes stages visible and says where their messages went; None if that batch had been published."""
        if self.is_published(command.query, command.batch, command.sink):
            return None
        key = sink_key(command.query, command.sink)
        self.check_queries(machine, key)
        extents = self.carry_out(machine, self._named(machine, command), time_ms)
        topics = tuple(extent.topic for extent in extents)
        self.published(machine, key, Query(command.batch, time_ms, command.once, topics))
        return extents

    def check_queries(self, machine: State, key: str) -> None:
        """Raises if one query more cannot be remembered."""
        settings = machine.settings
        if key in self.queries or len(self.queries) < settings.queries_max:
            return
        if sum(machine.owns(home_name(each)) for each in self.queries) >= settings.queries_max:
            raise LimitReached(
                f"{settings.queries_max} queries are remembered (queries_max): raise the limit, or remember them "
                "for a shorter time (query_age_ms)."
            )

    def check_room(self, machine: State, stages: Sequence[Stage], time_ms: int) -> None:
        """Raises what speaks against the messages of these stages in their topics."""
        self._plan(machine, stages, time_ms)

    def carry_out(self, machine: State, stages: Sequence[Stage], time_ms: int) -> tuple[Extent, ...]:
        """The messages of these stages get their offsets; a refusal raises and changes nothing."""
        entries, nexts = self._plan(machine, stages, time_ms)
        firsts: dict[str, int] = {}
        for entry in entries:
            staged = entry.staged
            topic = machine.topics.get(staged.topic) or machine.make_topic(staged.topic, time_ms)
            firsts.setdefault(topic.name, topic.next_offset)
            if entry.count:
                topic.append(staged.address, staged.size_bytes, entry.count, entry.kept, None, time_ms)
            topic.remember_ids(entry.ids, time_ms)
            machine.used_at_ms[topic.name] = time_ms
        return tuple(Extent(name, first, nexts[name]) for name, first in firsts.items())

    def published(self, machine: State, key: str, query: Query) -> None:
        """A batch of a query has been published: all that was staged for it and those before is dropped."""
        known = self.queries.get(key)
        # Also remembered elsewhere than at the query's home: who writes the batch again hears so at once. What finds no
        # room is heard of when it is published.
        has_room = machine.owns(home_name(key)) or len(self.queries) < 2 * machine.settings.queries_max
        if known.batch < query.batch if known is not None else has_room:
            self.queries[key] = query
        for stage in list(self._of_query.get(key, {}).values()):
            if stage.batch <= query.batch and self._may_go(machine, stage):
                self._drop(stage)

    def _may_go(self, machine: State, stage: Stage) -> bool:
        return not stage.held and machine.owns(stage.batches[0].topic)

    def parts_of(self, named: StageName, key: str, batch: int, is_in: Callable[[str], bool]) -> list[Stage]:
        """What a stage of a query's batch has here for some topics; those that were named first come first."""
        ranks = {topic: rank for rank, topic in enumerate(named.topics)}
        parts = [
            stage
            for stage in self._labelled.get(named.name, {}).values()
            if (stage.key, stage.batch) == (key, batch) and is_in(stage.batches[0].topic)
        ]
        return sorted(parts, key=lambda each: ranks.get(each.batches[0].topic, len(ranks)))

    def _named(self, machine: State, command: Publish) -> list[Stage]:
        found: dict[str, list[Stage]] = {}
        key = sink_key(command.query, command.sink)
        for named in command.stages:
            parts = self.parts_of(named, key, command.batch, machine.owns)
            if not parts and not named.count and named.name not in self._labelled:
                continue  # An attempt without any message has stored nothing.
            check_named(named, command.query, command.batch, sum(each.count for each in parts), bool(parts))
            if named.name in found:
                raise miscounted(named, named.count)
            found[named.name] = parts
        return [stage for parts in found.values() for stage in parts]

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
        for name, following in nexts.items():
            check_backlog(machine, name, following)
        return entries, nexts

    # Dropping.

    def discard(self, machine: State, command: Discard) -> tuple[str, ...]:
        """Drops stages and forgets queries, as far as they are there; which stages were."""
        found: dict[str, None] = {}
        for name in dict.fromkeys(command.stages):
            stage = self.stages.get(name)
            parts = self._labelled.get(name, {name: stage} if stage is not None and stage.batch != HELD else {})
            for part in list(parts.values()):
                if self._may_go(machine, part):
                    found[part.label] = None
                    self._drop(part)
        for name in command.queries:
            query = self.queries.get(name)
            if query is not None and query.at_ms < command.before_ms and not self._is_frozen(machine, name):
                del self.queries[name]
        return tuple(found)

    def _is_frozen(self, machine: State, key: str) -> bool:
        return machine.ownership.is_frozen(home_name(key))

    def discard_due(self, machine: State, now_ms: int) -> list[Discard]:
        """The commands that drop what has grown old; empty when nothing has."""
        settings = machine.settings
        staged_before_ms, asked_before_ms = now_ms - settings.stage_age_ms, now_ms - settings.query_age_ms
        staged = (stage for stage in self.stages.values() if stage.batch != HELD and stage.at_ms < staged_before_ms)
        stages = tuple(stage.name for stage in staged if self._may_go(machine, stage))
        before_ms = {True: staged_before_ms, False: asked_before_ms}
        old = [(name, each.once) for name, each in self.queries.items() if each.at_ms < before_ms[each.once]]
        old = [(name, once) for name, once in old if not self._is_frozen(machine, name)]
        once = tuple(name for name, once in old if once)
        silent = tuple(name for name, once in old if not once)
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
