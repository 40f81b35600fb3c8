"""What a journal has come to: the same state machine as the broker's, driven by the records that are final.

A record in the journal need not have changed anything: a put that was sent twice is there twice, and counts once. Only
the state machine knows, so the storage server runs one too. It reads the commands and passes over the bodies; whoever
wants messages finds their places in the topics' indexes. Nothing here writes.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator

from tidings.errors import NoSuchTopic, StorageDamaged, TidingsError
from tidings.journal import segment as files
from tidings.journal.blocks import Blocks
from tidings.journal.checked import Checked
from tidings.journal.disk import ReadFolder
from tidings.journal.record import COMMAND, HEADER_SIZE, Record, peek
from tidings.journal.recovery import Span, check
from tidings.journal.segment import SEGMENT_HEADER_SIZE
from tidings.message import Columns
from tidings.protocols.broker.commands import Collect, Command, DeadLetter, Trim, Write, decode_command
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.topics import Place, Topic
from tidings.settings import BrokerSettings
from tidings.wire import codec

WINDOW_BYTES = 8 * 1024
"""Enough for many small records, and not much beside the body of a large one."""
RECOVERY_TRIES = 100
CHECKED_MAX = 64
"""Segments whose sums are kept in memory."""


class History:
    """Everything up to some address of a journal."""

    def __init__(self, folder: ReadFolder, settings: BrokerSettings) -> None:
        self._folder = folder
        self.machine = Machine(settings)
        self._finals: dict[int, int] = {}
        """Segments by their first slots: so many bytes of each are final."""
        self._slots: list[int] = [0]
        self._bases: list[int] = [0]
        self._next_slot = 0
        self._position = SEGMENT_HEADER_SIZE
        self._checked: dict[int, Checked] = {}
        """Segments of which messages were looked at, by their first slots."""
        self._blocks = Blocks()
        """The sums of the current one, as far as it was looked at."""

    @property
    def address(self) -> int:
        """Everything before this has been taken in."""
        return self._bases[-1] + self._position

    @property
    def final_address(self) -> int:
        """Everything before this is final, as far as is known here."""
        return max(self.address, self._bases[-1] + self._finals.get(self._slots[-1], 0))

    def recover(self, final_address: int) -> None:
        """Takes in the newest snapshot and what comes behind it, up to an address that is known to be final."""
        for attempt in range(RECOVERY_TRIES):
            try:
                self._restore()
                break
            except FileNotFoundError:  # A broker has sealed a segment or removed one at this very moment: look again.
                if attempt == RECOVERY_TRIES - 1:
                    raise
        name = files.journal_name(self._slots[-1])
        if name in self._folder.names():
            size = min(self._folder.size(name), final_address - self._bases[-1])
            self._check_last(size)
            self.note_final(name, size)

    def _check_last(self, size: int) -> None:
        """Checks what was at rest in the last segment, commands and all; what comes later has just been sent."""
        if size > SEGMENT_HEADER_SIZE:
            self._checked[self._slots[-1]] = self._make_checked(self._slots[-1])
            for span in self._sum_up(size):
                name, position = files.journal_name(self._slots[-1]), span.start - self._bases[-1]
                raise StorageDamaged(f"{name} is damaged at position {position}. Restore the folder from a copy.")

    def _restore(self) -> None:
        names = self._folder.names()
        snapshots = files.slots_of(names, files.SNAPSHOT_SUFFIX)
        self.machine = Machine(self.machine.settings)
        self._slots, self._bases, self._next_slot, self._finals = [0], [0], 0, {}
        self._checked.clear()
        if snapshots:
            name = files.snapshot_name(snapshots[-1])
            snapshot = files.decode_snapshot(self._folder.map(name), name, self._folder.salt)
            slots = [slot for slot in files.slots_of(names, files.JOURNAL_SUFFIX) if slot < snapshots[-1]]
            indexes = [self._index(slot) for slot in slots]
            self.machine.restore(snapshot.payload, [each.payload for each in indexes])
            self._slots = [*slots, snapshots[-1]]
            self._bases = [*(each.segment.base_address for each in indexes), snapshot.segment.end_address]
            self._next_slot = snapshots[-1]
        self._position = SEGMENT_HEADER_SIZE

    def _index(self, slot: int) -> files.Envelope:
        name = files.index_name(slot)
        return files.decode_index(self._folder.map(name), name, self._folder.salt)

    def note_final(self, name: str, size: int) -> None:
        """So many bytes of a file will not change any more."""
        for slot in files.slots_of([name], files.JOURNAL_SUFFIX):
            # A segment that has only its header may yet be taken back, when there is no room for its first record.
            if slot >= self._slots[-1] and size > SEGMENT_HEADER_SIZE:
                self._finals[slot] = max(size, self._finals.get(slot, 0))

    def is_beyond(self, name: str, size: int) -> bool:
        """Whether more of a file has been taken in, or counts as final, than its first `size` bytes."""
        for slot in files.slots_of([name], files.JOURNAL_SUFFIX):
            taken = self._position if slot == self._slots[-1] else 0
            return slot < self._slots[-1] or max(taken, self._finals.get(slot, 0)) > size
        return False

    def advance(self, touched: dict[str, None], before_forgetting: Callable[[Iterable[str]], None]) -> None:
        """Takes in all that is final, and adds to `touched` the topics that have got messages.

        `before_forgetting` is called before the index loses what these topics had.
        """
        while True:
            for record in self._records():
                self._next_slot = record.slot + 1
                if record.kind == COMMAND:
                    self._apply(decode_command(record.command), record, touched, before_forgetting)
            if not any(slot > self._slots[-1] for slot in self._finals):
                return
            self._next_segment()

    def _apply(
        self,
        command: Command,
        record: Record,
        touched: dict[str, None],
        before_forgetting: Callable[[Iterable[str]], None],
    ) -> None:
        match command:
            case Write(batches=batches):
                touched.update((target.topic, None) for batch in batches for target in batch.targets)
            case DeadLetter(to_topic=topic):
                touched[topic] = None
            case Trim(positions=positions):
                before_forgetting([position.topic for position in positions])
            case Collect(topics=topics):
                before_forgetting(topics)
        with contextlib.suppress(TidingsError):  # What the broker's state refused, this one refuses too.
            self.machine.apply(command, record.time_ms, record.body_address)

    def _records(self) -> Iterator[Record]:
        """The records of the current segment that are final and not taken in yet, without their bodies."""
        slot, base = self._slots[-1], self._bases[-1]
        name, final = files.journal_name(slot), self._finals.get(slot, 0)
        window, start = memoryview(b""), self._position
        while self._position < final:
            at = self._position - start
            found = peek(window[at:], base + self._position)
            if found is None:
                start = self._position
                window = self._folder.read_at(name, start, WINDOW_BYTES)
                found = peek(window, base + start)
            if found is None:  # A command that is longer than a window.
                window = self._folder.read_at(name, start, final - start)
                found = peek(window, base + start)
            if found is None or found[0].slot != self._next_slot or found[0].end_address > base + final:
                raise StorageDamaged(f"{name} is damaged at position {self._position}. Restore the folder from a copy.")
            record, _ = found
            yield record
            self._position = record.end_address - base

    def _next_segment(self) -> None:
        self._finals.pop(self._slots[-1], None)
        self._checked.pop(self._slots[-1], None)  # Its index has sums of it from now on.
        self._bases.append(self.address)
        self._slots.append(self._next_slot)
        if self._next_slot not in self._finals:
            raise StorageDamaged(f"{files.journal_name(self._next_slot)} is missing. Restore the folder from a copy.")
        self._position = SEGMENT_HEADER_SIZE
        self.machine.mark_sealed()

    # Looking at messages.

    def slot_at(self, address: int) -> int:
        """The first slot of the segment that holds an address."""
        return self._slots[max(0, bisect_right(self._bases, address) - 1)]

    def last(self, topic: str) -> tuple[int, Columns, int] | None:
        """A topic's last message: its offset, the batch and its row there; None if there is none."""
        found = self.machine.topics.get(topic)
        if found is None:
            raise NoSuchTopic(f"There is no topic {topic!r} in this storage.")
        if not found.offsets:
            return None
        place = found.place(len(found.offsets) - 1)
        row = found.next_offset - 1 - found.offsets[-1]
        return found.next_offset - 1, self._columns(place), row if place.kept is None else place.kept[row]

    def values(self, topic: Topic, offset: int) -> Iterator[list[bytes]]:
        """The messages of a topic from an offset on, batch by batch."""
        entry = topic.find(offset)
        while entry < len(topic.offsets):
            place = topic.place(entry)
            values = self._columns(place).values
            if place.kept is not None:
                values = [values[row] for row in place.kept]
            yield values[max(0, offset - topic.offsets[entry]) :]
            entry += 1

    def _columns(self, place: Place) -> Columns:
        slot = self.slot_at(place.address)
        checked = self._checked.get(slot)
        if checked is None:
            checked = self._checked[slot] = self._make_checked(slot)
            while len(self._checked) > CHECKED_MAX:
                del self._checked[next(iter(self._checked))]
        position = place.address - checked.base_address
        if slot == self._slots[-1] and position + place.size_bytes > self._blocks.size:
            self._sum_up(self._position)
        return codec.decode_columns(checked.read(position, place.size_bytes))

    def _make_checked(self, slot: int) -> Checked:
        """What the bytes of a segment are checked by: its index, or the records that are final by now."""
        name = files.journal_name(slot)
        if slot == self._slots[-1]:
            self._blocks = Blocks()
            return Checked(self._folder, name, self._bases[-1], self._blocks)
        index = self._index(slot)
        size = index.segment.end_address - index.segment.base_address
        return Checked(
            self._folder, name, index.segment.base_address, Blocks.unpack(index.sums, size) if index.sums else None
        )

    def _sum_up(self, end: int) -> list[Span]:
        """Sums the current segment up to the end of a record; what is damaged in that, which gets wrong sums."""
        base, blocks = self._bases[-1], self._blocks
        start = blocks.size
        view = self._folder.read_at(files.journal_name(self._slots[-1]), start, end - start)
        blocks.extend([view])
        found = list(check(view, base + start, 0 if start else SEGMENT_HEADER_SIZE))
        for span in found:
            blocks.spoil(span.start - base, span.end - base)
        return found


assert WINDOW_BYTES > HEADER_SIZE
