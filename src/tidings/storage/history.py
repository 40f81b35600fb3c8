"""What a journal has come to: the same state machine as the broker's, driven by the records that are final.

A record in the journal need not have changed anything: a put that was sent twice is there twice, and counts once. Only
the state machine knows, so the storage server runs one too. It reads the commands and passes over the bodies; anyone
who wants messages finds their places in the topics' indexes. Nothing here writes.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator

from tidings.errors import NoSuchTopic, StorageDamaged, TidingsError
from tidings.journal import segment as files
from tidings.journal.blocks import BLOCK_BYTES, Blocks, block_count
from tidings.journal.checked import Checked, DamagedPlace
from tidings.journal.disk import ReadFolder
from tidings.journal.record import COMMAND, HEADER_SIZE, Record, decode, size_at
from tidings.journal.segment import SEGMENT_HEADER_SIZE
from tidings.message import Columns
from tidings.protocols.broker.commands import Collect, Command, DeadLetter, Trim, Write, decode_command
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.topics import Place, Topic
from tidings.settings import BrokerSettings
from tidings.wire import codec

WINDOW_BYTES = 256 * 1024
"""Read at a time; a record that is larger is read by itself."""
CHECKED_MAX = 64
"""Segments whose sums are kept in memory."""
RECOVERY_TRIES = 100


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
        self._blocks = Blocks()
        """The sums of what has been taken in of the current segment."""
        self._checked: dict[int, Checked] = {}

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
            self.note_final(name, size)

    def _restore(self) -> None:
        names = self._folder.names()
        snapshots = files.slots_of(names, files.SNAPSHOT_SUFFIX)
        self.machine = Machine(self.machine.settings)
        self._slots, self._bases, self._next_slot, self._finals = [0], [0], 0, {}
        self._blocks, self._checked = Blocks(), {}
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
        """The records of the current segment that are final and not taken in yet, each checked."""
        slot, base = self._slots[-1], self._bases[-1]
        name, final = files.journal_name(slot), self._finals.get(slot, 0)
        window, start = memoryview(b""), self._position
        if self._position < final and not self._blocks.size:
            self._blocks.extend([self._folder.read_at(name, 0, SEGMENT_HEADER_SIZE)])
        while self._position < final:
            at = self._position - start
            size = size_at(window[at:])
            if not size or at + size > len(window):
                start, at = self._position, 0
                window = self._folder.read_at(name, start, min(WINDOW_BYTES, final - start))
                size = size_at(window)
                if len(window) < size <= final - start:
                    window = self._folder.read_at(name, start, size)
            record = decode(window, at, base + start)
            if record is None or record.slot != self._next_slot or record.end_address > base + final:
                raise StorageDamaged(f"{name} is damaged at position {self._position}. Restore the folder from a copy.")
            self._blocks.extend([window[at : at + size]])
            yield record
            self._position = record.end_address - base

    def _next_segment(self) -> None:
        self._finals.pop(self._slots[-1], None)
        if self._slots[-1] in self._checked:
            self._checked[self._slots[-1]].sealed = True
        self._blocks = Blocks()
        self._bases.append(self.address)
        self._slots.append(self._next_slot)
        if self._next_slot not in self._finals:
            raise StorageDamaged(f"{files.journal_name(self._next_slot)} is missing. Restore the folder from a copy.")
        self._position = SEGMENT_HEADER_SIZE
        self.machine.mark_sealed()

    # Looking for damage.

    remote = False

    @property
    def size_bytes(self) -> int:
        """How much has been taken in and is still there, as far as is known here."""
        return self.address - self._bases[0]

    def scrub(self, address: int, size: int) -> tuple[int, list[DamagedPlace]]:
        """Reads some of a segment again; where to go on, 0 after the end, and what is damaged in the segment."""
        number = max(0, bisect_right(self._bases, address) - 1)
        slot, base_address = self._slots[number], self._bases[number]
        is_last = number == len(self._slots) - 1
        end = 0 if is_last else self._bases[number + 1]
        try:
            checked = self._checked_of(slot, base_address)
            count = len(self._blocks.sums) if is_last else block_count(end - base_address)
            first = (max(address, base_address) - base_address) // BLOCK_BYTES
            last = min(count, first + max(1, size // BLOCK_BYTES))
            whole = [checked.scrub(each) for each in range(first, last)]
        except FileNotFoundError:  # Retention has removed it.
            return end, []
        return (end if last == count else base_address + last * BLOCK_BYTES), [] if all(whole) else list(
            checked.damaged
        )

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
        """A stored batch, or DamagedPlace if it fails its check."""
        number = max(0, bisect_right(self._bases, place.address) - 1)
        checked = self._checked_of(self._slots[number], self._bases[number])
        return codec.decode_columns(checked.read(place.address - self._bases[number], place.size_bytes))

    def _checked_of(self, slot: int, base_address: int) -> Checked:
        checked = self._checked.get(slot)
        if checked is None:
            is_last = slot == self._slots[-1]
            blocks = self._blocks if is_last else self._sealed_blocks(slot)
            checked = Checked(self._folder, files.journal_name(slot), base_address, blocks)
            checked.sealed = not is_last
            while len(self._checked) >= CHECKED_MAX:
                del self._checked[next(iter(self._checked))]
            self._checked[slot] = checked
        return checked

    def _sealed_blocks(self, slot: int) -> Blocks | None:
        try:
            index = self._index(slot)
        except (StorageDamaged, FileNotFoundError):  # Then its records are what it is checked by.
            return None
        size = index.segment.end_address - index.segment.base_address
        return Blocks.unpack(index.sums, size) if index.sums else None


assert WINDOW_BYTES > HEADER_SIZE
