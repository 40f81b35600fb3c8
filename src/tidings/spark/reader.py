"""Reading topics in batch and as a stream.

A task reads ranges of offsets by itself; nothing is subscribed and nothing acknowledged. The offsets of a stream live
in Spark's checkpoint, as `{"topic": next offset}` with the topics in order, because Spark compares them as text.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tidings.client.bus import Bus
from tidings.client.ranges import Stored
from tidings.errors import InvalidRequest
from tidings.message import TopicInfo
from tidings.spark.door import bus_of
from tidings.spark.options import Reading
from tidings.spark.planning import (
    Range,
    batch_ranges,
    check_named,
    find_topics,
    kept,
    place_of,
    resolve,
    split_as_asked,
)
from tidings.spark.planning import limit as limited
from tidings.spark.worker import prepare_worker

log = logging.getLogger("tidings.spark")

Offsets = dict[str, int]

UNLIMITED = 2**63 - 1


class Share(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(None)
        self.ranges = list(ranges)

    def __repr__(self) -> str:
        return f"Share({self.ranges})"


def read_share(reading: Reading, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one task, as RecordBatches."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from tidings.spark.arrow import record_batches

    assert isinstance(partition, Share)
    prepare_worker()
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    with bus_of(reading.door) as bus:
        for wanted in partition.ranges:
            yield from record_batches(_batches(bus, reading, wanted), arrow_schema)


def _batches(bus: Bus, reading: Reading, wanted: Range) -> Iterator[Stored]:
    """The stored batches of a range. Retention may be faster than we are: what it took is an error, or passed over."""
    at = wanted.start
    while at < wanted.end:
        try:
            for batch in bus.read_stored(wanted.topic, at, wanted.end):
                yield batch
                at = batch.end
        except InvalidRequest:
            rest = kept(Range(wanted.topic, at, wanted.end), bus.topic(wanted.topic), reading)
            if rest == Range(wanted.topic, at, wanted.end):
                raise
            at, wanted = rest.start, Range(wanted.topic, rest.start, rest.end)


class BatchReader(DataSourceReader):
    """`spark.read.format("tidings")`.

    It takes no filters: PySpark 4.3 keeps what the last filter left for every other use of the same DataFrame, so
    that a union of two filtered ones would lose rows. Ranges are given as options instead.
    """

    def __init__(self, reading: Reading, schema: StructType) -> None:
        self._reading = reading
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """A share of the range for each task. Spark wants a list, and at least one task to run."""
        prepare_worker()
        with bus_of(self._reading.door, begins=True) as bus:
            ranges = batch_ranges(bus, self._reading)
        return [Share(share) for share in split_as_asked(ranges, self._reading)] or [Share([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_share(self._reading, self._schema, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("tidings")`: the driver's part plans, the tasks read."""

    def __init__(self, reading: Reading, schema: StructType) -> None:
        self._reading = reading
        self._schema = schema
        self._initial: Offsets | None = None
        self._begun = False
        """Whether a micro-batch has been planned by this process."""
        self._target: Offsets | None = None
        """How far a query with the trigger availableNow goes."""
        self._latest: Offsets | None = None
        self._planned_at = -math.inf
        """When this process planned the last micro-batch with messages."""
        self._found: tuple[Offsets, dict[str, TopicInfo]] | None = None
        """The end of the last micro-batch that was planned, and what the topics held then."""

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """Where a new query begins. Spark asks twice and takes it that the answers are the same."""
        if self._initial is None:
            with bus_of(self._reading.door, begins=True) as bus:
                topics = find_topics(bus, self._reading)
                if not self._reading.has_pattern:
                    check_named(self._reading, topics)
                self._initial = {
                    name: resolve(bus, info, place_of(self._reading.starting, name, "earliest"), "startingOffsets")
                    for name, info in topics.items()
                }
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        # Without a limit too: what asks for all there is, then, is the trigger `once`.
        return ReadMaxRows(self._reading.messages_max or UNLIMITED)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        with bus_of(self._reading.door, begins=True) as bus:
            topics = find_topics(bus, self._reading, known=self._reading.topics)
        self._target = {name: info.next_offset for name, info in topics.items()}

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802 - Spark's name
        """How far the next micro-batch goes.

        The checkpoint holds only the ends of micro-batches. So the first one of a new query reads nothing and ends
        where the query begins, and a topic that has come up since ends with its first message in one micro-batch
        and is read in the next: whatever is repeated after a crash begins where it had begun. With the trigger `once`
        there is no next one: the first is read, unless it would begin elsewhere after a crash.
        """
        once = isinstance(limit, ReadAllAvailable)
        if self._initial is not None and not self._begun:
            self._begun = True
            if not once or self._begins_at_ends:
                return start
        with bus_of(self._reading.door) as bus:
            topics = find_topics(bus, self._reading, known=self._known(start))
        self._latest = {name: info.next_offset for name, info in topics.items()}
        ends = {name: self._end(info, start.get(name)) for name, info in topics.items()}
        if not once and self._target is None and self._is_early(start, ends):
            return start
        if isinstance(limit, ReadMaxRows):
            ends = limited({**ends, **start}, ends, limit.max_rows)
        # A topic that is gone keeps its place: it goes on there if it comes back.
        end = dict(sorted({**start, **ends}.items()))
        self._found = end, topics
        return end

    @property
    def _begins_at_ends(self) -> bool:
        places = self._reading.starting
        return "latest" in (places.values() if isinstance(places, Mapping) else (places,))

    def _is_early(self, start: Offsets, ends: Offsets) -> bool:
        """Whether to wait for more messages before the next micro-batch."""
        now = time.monotonic()
        waiting = sum(end - start.get(name, end) for name, end in ends.items())
        if waiting < self._reading.messages_min and now < self._planned_at + self._reading.delay_ms_max / 1000:
            return True
        if waiting:
            self._planned_at = now
        return False

    def _known(self, start: Offsets) -> Iterable[str]:
        """The topics that need not be there: where lost ones are passed over, that was said when the query began."""
        return start if self._reading.fail_on_data_loss else self._reading.topics

    def _end(self, info: TopicInfo, at: int | None) -> int:
        """How far a topic can be read by a query that stands at an offset of it, or has not begun with it."""
        if at is None:
            return info.first_offset
        if at > info.next_offset:
            return kept(Range(info.name, info.next_offset, at), info, self._reading).end
        target = info.next_offset if self._target is None else self._target.get(info.name, at)
        return max(at, min(info.next_offset, target))

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802 - Spark's name
        """Shown as latestOffset in the query's progress: the distance to endOffset is the lag."""
        return self._latest

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """The shares of a micro-batch; after a restart those of the one that had not been finished."""
        self._begun = True
        if self._found is not None and self._found[0] == end:
            known = self._found[1]  # Spark has asked a moment ago; what is lost since then the tasks will find out.
        else:
            with bus_of(self._reading.door) as bus:
                known = {info.name: info for info in bus.topics()}
        ranges = []
        for name, until in end.items():
            wanted = Range(name, min(start.get(name, until), until), until)
            ranges.append(kept(wanted, known.get(name) or TopicInfo(name, 0, 0, 0), self._reading))
        return [Share(share) for share in split_as_asked(ranges, self._reading)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_share(self._reading, self._schema, partition)
