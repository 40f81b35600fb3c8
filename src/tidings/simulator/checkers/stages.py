"""The invariants of stages and ranges."""

from __future__ import annotations

from typing import Any, Protocol

from tidings.message import Batch
from tidings.node.engine import AnyEngine
from tidings.protocols.broker.bulk import PublishDone
from tidings.protocols.broker.commands import Publish
from tidings.simulator.checkers.checker import Checker, Process
from tidings.simulator.checkers.ledger import Existing, Ledger, name_of
from tidings.wire.codec import decode_columns


class Query(Protocol):
    """What checkers know of a query."""

    publisher: str
    batches: list[list[tuple[str, str]]]
    noted: int
    """So many of its batches are noted as published."""


class EachBatchOnce(Checker):
    """A batch of a query becomes visible with all of its rows at once, and never again."""

    RULE = "each batch of a query is visible once, in full or not at all"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.queries: dict[str, Query] = {}
        self._visible: dict[tuple[str, int], None] = {}

    def on_existing(self, existing: Existing) -> None:
        command = existing.command
        if not isinstance(command, Publish) or existing.error is not None or existing.result is None:
            return
        key = (command.query, command.batch)
        if key in self._visible:
            self.broken(f"batch {command.batch} of {command.query} is published a second time")
        self._visible[key] = None
        found = sorted((topic, name) for topic, _, name in existing.stored)
        wanted = sorted(self.queries[command.query].batches[command.batch])
        if found != wanted:
            self.broken(f"batch {command.batch} of {command.query} shows {found} and has {wanted}")
        extents: Any = existing.result
        counted = sum(extent.next_offset - extent.first_offset for extent in extents)
        if counted != len(wanted):
            self.broken(f"batch {command.batch} of {command.query} takes {counted} offsets and has {len(wanted)} rows")

    def on_published(self, process: Process, query: Query, batch: int, done: PublishDone) -> None:
        """A client was told that a batch is published."""
        if (query.publisher, batch) not in self._visible:
            self.broken(f"{process.label} was told {done} of batch {batch}, and it is not durable")

    def on_end(self, engine: AnyEngine) -> None:
        for query in self.queries.values():
            missing = [number for number in range(query.noted) if (query.publisher, number) not in self._visible]
            if missing:
                self.broken(f"the batches {missing} of {query.publisher} are noted and not visible")
        for stage in engine.broker.machine.stages.stages.values():
            _, _, batches = self.ledger.staged[stage.name]
            for number, staged in enumerate(stage.batches, 1):
                body = engine.journal.read(staged.address, staged.size_bytes)
                found = [name_of(value) for value in decode_columns(body).values]
                if (staged.topic, found) != batches[number]:
                    self.broken(f"{stage.name} holds {found} for {staged.topic}, and {batches[number]} was staged")


class RangesAreTrue(Checker):
    """A reader of a range gets the messages that are stored at these offsets."""

    RULE = "a range reads as what is stored there"

    def on_read(self, process: Process, batch: Batch) -> None:
        """A reader was given a batch."""
        found = [name_of(value) for value in batch.values]
        wanted = self.ledger.topics.get(batch.topic, [])[batch.first_offset : batch.next_offset]
        if found != wanted:
            self.broken(f"{process.label} read {found} at {batch.first_offset} of {batch.topic}, and {wanted} is there")
