"""A topic is an index into the journal: where each of its batches lies.

Four parallel columns hold, for each stored batch, the offset of its first message, the journal address
of its body, the body's size and the time at which it was stored: 28 bytes a batch, whatever the messages weigh.
The log has no holes: it reaches from `first_offset` (what retention left) to `next_offset`. Times never fall from one
batch to the next, even if the broker's clock was set back between two of its lives; 0 stands for the batches of
journals that were written before times were kept.

The index goes to disk in pieces: when a journal segment is sealed, what the index gained while that
segment was written goes into a file beside it, and recovery puts the pieces together again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from itertools import pairwise

import msgspec

from tidings.protocols.broker.messages import Position


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where a stored body lies. `kept` names the messages of it that count; None means all of them."""

    address: int
    size_bytes: int
    kept: tuple[int, ...] | None = None


class TopicIndex(msgspec.Struct, frozen=True, array_like=True):
    """What a topic's index gained while one journal segment was written.

    `carried` lists older batches that were copied into this segment: first offset, address, size.
    """

    topic: str
    offsets: bytes
    addresses: bytes
    sizes: bytes
    thinned: dict[int, tuple[int, ...]]
    shared: dict[int, tuple[Position, ...]]
    carried: tuple[tuple[int, int, int], ...]
    times: bytes = b""
    """Missing, as are `carried_times`, in an index that was written before times were kept."""
    carried_times: tuple[int, ...] = ()


class Topic:
    """One totally ordered log: its index, the ids it has taken, and the edges of what it holds."""

    __slots__ = (
        "acked_offset",
        "addresses",
        "carried",
        "first_offset",
        "fully_acked_offset",
        "id_times",
        "ids",
        "max_backlog",
        "name",
        "next_offset",
        "offsets",
        "scattered",
        "sealed_count",
        "shared",
        "size_bytes",
        "sizes",
        "thinned",
        "times",
    )

    def __init__(self, name: str, first_offset: int = 0, next_offset: int = 0) -> None:
        self.name = name
        self.first_offset = first_offset
        self.next_offset = next_offset
        self.offsets = array("Q")
        self.addresses = array("Q")
        self.sizes = array("I")
        self.times = array("Q")
        """When each batch was stored, in milliseconds since 1970; 0 where that is not known."""
        self.size_bytes = 0
        self.thinned: dict[int, tuple[int, ...]] = {}
        """Batches of which some messages were duplicates: first offset -> which messages count."""
        self.shared: dict[int, tuple[Position, ...]] = {}
        """Batches that went to several topics at once: first offset -> their places in all of them."""
        self.carried: dict[int, int] = {}
        """Batches copied forward since the last seal: first offset -> new address."""
        self.scattered = False
        """Some batch was copied forward, or staged long before it came here: addresses do not rise with the offsets."""
        self.ids: dict[str, int] = {}
        self.id_times: deque[tuple[int, str]] = deque()
        self.sealed_count = 0
        self.acked_offset = 0
        """Everything below had been acknowledged by a reader that has since gone, or was never meant for it."""
        self.fully_acked_offset = 0
        """Everything below was meant for readers that acknowledged it and have since gone."""
        self.max_backlog: int | None = None
        """How many messages may wait here, 0 for any number; None for what the broker's settings say."""

    def append(
        self,
        address: int,
        size_bytes: int,
        count: int,
        kept: tuple[int, ...] | None,
        shared: tuple[Position, ...] | None,
        time_ms: int = 0,
    ) -> None:
        """The next `count` messages lie in the body at `address`; they were stored at `time_ms`."""
        first, addresses, times = self.next_offset, self.addresses, self.times
        if addresses:
            if address < addresses[-1]:
                self.scattered = True
            if time_ms < times[-1]:
                time_ms = times[-1]
        times.append(time_ms)
        self.offsets.append(first)
        addresses.append(address)
        self.sizes.append(size_bytes)
        self.size_bytes += size_bytes
        if kept is not None:
            self.thinned[first] = kept
        if shared is not None:
            self.shared[first] = shared
        self.next_offset = first + count

    def find(self, offset: int) -> int:
        """The number of the batch that holds `offset`."""
        assert self.first_offset <= offset < self.next_offset
        return bisect_right(self.offsets, offset) - 1

    def end_of(self, entry: int) -> int:
        """The offset after the last message of a batch."""
        return self.offsets[entry + 1] if entry + 1 < len(self.offsets) else self.next_offset

    def offset_at(self, time_ms: int) -> int:
        """The first offset that was stored at or after a time; `next_offset` when nothing was."""
        entry = bisect_left(self.times, time_ms)
        return self.offsets[entry] if entry < len(self.offsets) else self.next_offset

    @property
    def lowest_address(self) -> int:
        """The lowest address at which the topic holds something."""
        return min(self.addresses) if self.scattered else self.addresses[0]

    def place(self, entry: int) -> Place:
        kept = self.thinned.get(self.offsets[entry]) if self.thinned else None
        return Place(self.addresses[entry], self.sizes[entry], kept)

    def trim(self, offset: int) -> None:
        """Forgets whole batches below `offset`."""
        count = 0
        while count < len(self.offsets) and self.end_of(count) <= offset:
            count += 1
        if not count:
            return
        self.size_bytes -= sum(self.sizes[:count])
        for first in self.offsets[:count]:
            self.thinned.pop(first, None)
            self.shared.pop(first, None)
            self.carried.pop(first, None)
        del self.offsets[:count], self.addresses[:count], self.sizes[:count], self.times[:count]
        self.sealed_count = max(0, self.sealed_count - count)
        self.first_offset = self.offsets[0] if self.offsets else self.next_offset

    def entries_within(self, address: int, end_address: int) -> list[int]:
        """The numbers of the batches that lie between two addresses."""
        if not self.scattered:
            first, end = bisect_left(self.addresses, address), bisect_left(self.addresses, end_address)
            return list(range(first, end))
        return [entry for entry, each in enumerate(self.addresses) if address <= each < end_address]

    def carry(self, first_offset: int, address: int) -> None:
        """A batch has been copied to `address`; nothing happens if retention was faster."""
        if first_offset < self.first_offset:
            return
        entry = self.find(first_offset)
        self.addresses[entry] = address
        self.scattered = True
        if entry < self.sealed_count:
            self.carried[first_offset] = address

    def leave(self, start: int | None, cursor: int) -> None:
        """A reader goes that began at `start` (None: not known), and for which everything below `cursor` is done."""
        self.acked_offset = max(self.acked_offset, cursor)
        if start is not None and start <= max(self.fully_acked_offset, self.first_offset):
            self.fully_acked_offset = max(self.fully_acked_offset, cursor)

    def remember_ids(self, ids: list[tuple[str, int]], time_ms: int) -> None:
        """These ids are taken, each by the message at its offset."""
        for name, offset in ids:
            self.ids[name] = offset
            self.id_times.append((time_ms, name))

    def forget_ids(self, before_ms: int) -> None:
        """Ids taken before that time may be used again."""
        while self.id_times and self.id_times[0][0] < before_ms:
            self.ids.pop(self.id_times.popleft()[1], None)

    def seal(self) -> TopicIndex | None:
        """What the index has gained since the last seal, None when that is nothing."""
        start = self.sealed_count
        if start == len(self.offsets) and not self.carried:
            return None
        edge = self.offsets[start] if start < len(self.offsets) else self.next_offset
        return TopicIndex(
            self.name,
            self.offsets[start:].tobytes(),
            self.addresses[start:].tobytes(),
            self.sizes[start:].tobytes(),
            {first: kept for first, kept in self.thinned.items() if first >= edge or first in self.carried},
            {first: places for first, places in self.shared.items() if first >= edge or first in self.carried},
            tuple((first, address, self.sizes[self.find(first)]) for first, address in self.carried.items()),
            self.times[start:].tobytes(),
            tuple(self.times[self.find(first)] for first in self.carried),
        )

    def mark_sealed(self) -> None:
        """The index up to here is on disk and stays there."""
        self.sealed_count = len(self.offsets)
        self.carried.clear()

    def load(self, piece: TopicIndex) -> None:
        """Adds a piece that `seal` made; pieces come in the order of their segments.

        In a ring, a topic may have been given away and taken back since an older piece was written: what the newer
        one says again replaces what was said before.
        """
        if piece.offsets and self.offsets:
            [first] = array("Q", piece.offsets[:8])
            if first <= self.offsets[-1]:
                self._unload(first)
        self.offsets.frombytes(piece.offsets)
        self.addresses.frombytes(piece.addresses)
        self.sizes.frombytes(piece.sizes)
        self.times.frombytes(piece.times or bytes(len(piece.offsets)))
        self.thinned.update(piece.thinned)
        self.shared.update(piece.shared)
        if piece.carried:
            self._load_carried(piece.carried, piece.carried_times or (0,) * len(piece.carried))

    def _unload(self, first_offset: int) -> None:
        """Forgets what older pieces have said of the batches from this offset on."""
        count = bisect_left(self.offsets, first_offset)
        for first in self.offsets[count:]:
            self.thinned.pop(first, None)
            self.shared.pop(first, None)
        del self.offsets[count:], self.addresses[count:], self.sizes[count:], self.times[count:]

    def _load_carried(self, carried: tuple[tuple[int, int, int], ...], times: tuple[int, ...]) -> None:
        """Batches whose first segment may be gone: put where they belong in the order of offsets."""
        rows = dict(zip(self.offsets, zip(self.addresses, self.sizes, self.times, strict=True), strict=True))
        for (first, address, size_bytes), at_ms in zip(carried, times, strict=True):
            rows[first] = (address, size_bytes, at_ms)
        ordered = sorted(rows)
        self.offsets = array("Q", ordered)
        self.addresses = array("Q", [rows[first][0] for first in ordered])
        self.sizes = array("I", [rows[first][1] for first in ordered])
        self.times = array("Q", [rows[first][2] for first in ordered])

    def finish_loading(self) -> None:
        """After the last piece: forgets what retention had removed, and counts."""
        count = bisect_right(self.offsets, self.first_offset) - 1
        if self.first_offset == self.next_offset:
            count = len(self.offsets)
        if count > 0:
            for first in self.offsets[:count]:
                self.thinned.pop(first, None)
                self.shared.pop(first, None)
            del self.offsets[:count], self.addresses[:count], self.sizes[:count], self.times[:count]
        self.size_bytes = sum(self.sizes)
        self.scattered = any(address > following for address, following in pairwise(self.addresses))
        self.sealed_count = len(self.offsets)
