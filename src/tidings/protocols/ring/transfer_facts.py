"""The list of facts of a transfer, in the order in which `facts` defines it, from any place on.

Replicas of a group cut the runs of a track at different places, because each seals its own segments; so runs are put
together and cut again here, and every leader that a source ever has gives the same list.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice

from tidings.protocols.broker.clients import Track
from tidings.protocols.broker.staged import HELD, Stage, home_name
from tidings.protocols.broker.state import State
from tidings.protocols.broker.topics import Place
from tidings.protocols.ring.facts import (
    Edges,
    Epoch,
    Fact,
    Home,
    Ids,
    Known,
    Published,
    Reader,
    Retired,
    Runs,
    Sharers,
    Staged,
)
from tidings.protocols.ring.key_ranges import KeyRanges, home_of, owns, point_of


class Transfer:
    """What there is in some ranges that are frozen."""

    def __init__(self, machine: State, ranges: KeyRanges, records_max: int) -> None:
        self._machine = machine
        self._records_max = records_max
        self._publishers: dict[str, list[str]] = {}
        """topic -> who has put to it, by name."""
        for client in sorted(machine.clients.values(), key=lambda each: each.name):
            for topic in client.tracks:
                if owns(ranges, point_of(topic)):
                    self._publishers.setdefault(topic, []).append(client.name)
        self._stages: dict[str, list[Stage]] = {}
        for stage in sorted(machine.stages.stages.values(), key=lambda each: each.name):
            if stage.batch != HELD:
                self._stages.setdefault(stage.batches[0].topic, []).append(stage)
        self._queries: dict[str, list[str]] = {}
        for key in sorted(machine.stages.queries):
            self._queries.setdefault(home_name(key), []).append(key)
        stored = (*machine.topics, *machine.retired, *self._stages, *self._queries)
        self.topics = sorted(
            dict.fromkeys((*(name for name in stored if owns(ranges, point_of(name))), *self._publishers))
        )
        self._ranges = ranges
        self.clients = sorted(
            client.name
            for client in machine.clients.values()
            if (client.token and owns(ranges, home_of(client.name))) or (client.epoch > 1 and not client.anonymous)
        )

    def topics_from(self, name: str) -> list[str]:
        return self.topics[bisect_left(self.topics, name) :]

    def clients_from(self, name: str) -> list[str]:
        return self.clients[bisect_left(self.clients, name) :]

    def facts_of_topic(self, name: str) -> Iterator[Fact]:
        """All facts of a topic, in their order."""
        machine = self._machine
        topic = machine.topics.get(name)
        if topic is None:
            yield Retired(name, machine.retired.get(name, 0))
        else:
            used_at_ms = machine.used_at_ms.get(name, 0)
            edges = (topic.first_offset, topic.next_offset, topic.acked_offset)
            yield Edges(name, *edges, used_at_ms, topic.max_backlog, topic.fully_acked_offset)
            ids = ((at_ms, each, topic.ids[each]) for at_ms, each in topic.id_times)
            while some := tuple(islice(ids, self._records_max)):
                yield Ids(name, some)
        for publisher in self._publishers.get(name, ()):
            track = machine.clients[publisher].tracks[name]
            yield from self._runs(name, publisher, track, topic.first_offset if topic is not None else None)
        for _, reader in sorted(machine.readers.get(name, {}).items()):
            if reader.topics[-1] == name:
                yield Reader(self._known(reader.client), reader)
        for _, group in sorted(machine.groups_of.get(name, {}).items()):
            yield Sharers(group.state(), tuple(self._known(member) for member in group.members))
        for stage in self._stages.get(name, ()):
            fields = (stage.name, stage.query, stage.batch, stage.sink, stage.at_ms, stage.last)
            for index, staged in enumerate(stage.batches):
                yield Staged(name, *fields, index, staged.count, staged.size_bytes, staged.ids)
        for key in self._queries.get(name, ()):
            yield Published(key, machine.stages.queries[key])

    def place_of(self, staged: Staged) -> Place:
        """Where the body of a staged batch lies."""
        batch = self._machine.stages.stages[staged.name].batches[staged.index]
        return Place(batch.address, batch.size_bytes)

    def facts_of_client(self, name: str) -> Iterator[Fact]:
        """What the target has to know of a client: more if its home is in the ranges."""
        client = self._machine.clients.get(name)
        if client is not None and not (client.token and owns(self._ranges, home_of(name))):
            yield Epoch(self._known(name))
        elif client is not None:
            yield Home(self._known(name), client.token, tuple(client.past_tokens), client.noted)

    def _known(self, name: str) -> Known:
        client = self._machine.clients[name]
        return Known(name, client.epoch, client.anonymous)

    def _runs(self, topic: str, publisher: str, track: Track, first_offset: int | None) -> Iterator[Fact]:
        """A track in records; of a topic that was collected, no places are left to tell."""
        columns = whole_runs(track, first_offset) if first_offset is not None else whole_runs(track, 1 << 63)
        known, step = self._known(publisher), self._records_max
        for start in range(0, max(1, len(columns[0])), step):
            sequences, offsets, counts = (column[start : start + step].tobytes() for column in columns)
            yield Runs(topic, known, track.last, sequences, offsets, counts, start > 0)


def whole_runs(track: Track, first_offset: int) -> tuple[array[int], array[int], array[int]]:
    """The runs of a track from an offset on, as few as they can be.

    >>> track = Track()
    >>> for sequence, offset in ((1, 4), (2, 5), (3, 6), (4, 9)):
    ...     track.take(sequence, offset, 1)
    ...     track.sealed_count = len(track.sequences)
    >>> whole_runs(track, 5)
    (array('Q', [2, 4]), array('Q', [5, 9]), array('Q', [2, 1]))
    """
    sequences, offsets, counts = array("Q"), array("Q"), array("Q")
    for sequence, offset, count in zip(track.sequences, track.offsets, track.counts, strict=True):
        skipped = max(0, first_offset - offset)
        if skipped >= count:
            continue
        sequence, offset, count = sequence + skipped, offset + skipped, count - skipped
        if sequences and sequence == sequences[-1] + counts[-1] and offset == offsets[-1] + counts[-1]:
            counts[-1] += count
        else:
            sequences.append(sequence)
            offsets.append(offset)
            counts.append(count)
    return sequences, offsets, counts
