"""What the groups of a ring owe to each other for stages that lie with several of them.

Reckoned by the decided commands alone: a batch of a query is published by one record of the group that has all of it
and the query's home, or by the decision of a commit, which the groups with a part of it carry out.
"""

from __future__ import annotations

from tidings.node.engine import AnyEngine
from tidings.protocols.broker.bulk import PublishDone
from tidings.protocols.broker.commands import Publish
from tidings.protocols.broker.ownership import Grown
from tidings.protocols.broker.staged import HELD
from tidings.protocols.ring.commit_commands import BeginCommit, DecideCommit, Publishing, ResolvePart
from tidings.simulator.checkers.checker import Process
from tidings.simulator.checkers.ledger import Existing, Ledger, name_of
from tidings.simulator.checkers.stages import EachBatchOnce, Query
from tidings.wire.codec import decode_columns

Rows = list[tuple[str, str]]


class EachBatchOnceAcross(EachBatchOnce):
    """The same where topics have several owners: who asked is answered when each has carried out its part."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._begun: dict[bytes, Publishing] = {}
        self._batch_of: dict[bytes, tuple[str, int]] = {}
        self._shown: dict[tuple[str, int], Rows] = {}
        """(query, batch) -> what of it was stored by parts, once it has been decided."""

    def on_existing(self, existing: Existing) -> None:
        command = existing.command
        if existing.error is not None:
            return
        match command:
            case Publish():
                super().on_existing(existing)
            case BeginCommit(commit, publishing=Publishing() as publishing):
                self._begun[commit] = publishing
            case DecideCommit(commit) if existing.result and commit in self._begun:
                self._on_decided(commit)
            case ResolvePart(commit) if isinstance(existing.result, Grown) and existing.result.extents:
                if existing.result.topics:
                    self._on_part(commit, existing, existing.result)

    def _on_decided(self, commit: bytes) -> None:
        publishing = self._begun.pop(commit)
        key = self._batch_of[commit] = (publishing.query, publishing.batch)
        if key in self._visible:
            self.broken(f"batch {publishing.batch} of {publishing.query} is published a second time")
        self._visible[key] = None
        self._shown[key] = []

    def _on_part(self, commit: bytes, existing: Existing, grown: Grown) -> None:
        query, batch = self._batch_of[commit]
        rows = [(topic, name) for topic, _, name in existing.stored]
        counted = sum(extent.next_offset - extent.first_offset for extent in grown.extents)
        if counted != len(rows):
            self.broken(f"a part of batch {batch} of {query} takes {counted} offsets and has {len(rows)} rows")
        shown = self._shown.get((query, batch))
        if shown is None:
            self.broken(f"a part of batch {batch} of {query} is carried out, and that is not decided")
        shown += rows
        strange = [row for row in shown if shown.count(row) > 1 or row not in self.queries[query].batches[batch]]
        if strange:
            self.broken(f"batch {batch} of {query} shows {strange}")

    def on_published(self, process: Process, query: Query, batch: int, done: PublishDone) -> None:
        super().on_published(process, query, batch, done)
        self._check_whole(query, batch)

    def _check_whole(self, query: Query, batch: int) -> None:
        shown, wanted = self._shown.get((query.publisher, batch)), sorted(query.batches[batch])
        if shown is not None and sorted(shown) != wanted:
            self.broken(f"batch {batch} of {query.publisher} shows {sorted(shown)} and has {wanted}")

    def on_end(self, engine: AnyEngine) -> None:
        for query in self.queries.values():
            missing = [number for number in range(query.noted) if (query.publisher, number) not in self._visible]
            if missing:
                self.broken(f"the batches {missing} of {query.publisher} are noted and not visible")
            for number in range(len(query.batches)):
                self._check_whole(query, number)
        for stage in engine.broker.machine.stages.stages.values():
            if stage.batch == HELD:
                continue
            _, _, batches = self.ledger.staged[stage.label]
            topic = stage.batches[0].topic
            wanted = [names for _, (other, names) in sorted(batches.items()) if other == topic]
            found = []
            for staged in stage.batches:
                body = engine.journal.read(staged.address, staged.size_bytes)
                found.append([name_of(value) for value in decode_columns(body).values])
            if found != wanted[: len(found)]:
                self.broken(f"{stage.label} holds {found} for {topic}, and {wanted} was staged")
