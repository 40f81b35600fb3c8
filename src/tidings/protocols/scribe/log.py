"""The log of one topic, at its root and at the copies: offsets, and who published how much."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from tidings.protocols.scribe.messages import Entry

Item = TypeVar("Item")


def chunks(
    items: Iterable[Item], size_of: Callable[[Item], int], count_max: int, bytes_max: int
) -> Iterator[tuple[Item, ...]]:
    """Cuts messages into as much as one message between nodes may carry, and at least one at a time.

    >>> list(chunks([b"one", b"two", b"three", b"4"], len, count_max=2, bytes_max=6))
    [(b'one', b'two'), (b'three', b'4')]
    >>> list(chunks([b"one", b"two"], len, count_max=2, bytes_max=1))
    [(b'one',), (b'two',)]
    """
    chunk: list[Item] = []
    size_bytes = 0
    for item in items:
        size_bytes += size_of(item)
        if chunk and (len(chunk) == count_max or size_bytes > bytes_max):
            yield tuple(chunk)
            chunk, size_bytes = [], size_of(item)
        chunk.append(item)
    if chunk:
        yield tuple(chunk)


def size_of(entry: Entry) -> int:
    return len(entry.payload)


def publisher_of(entry: Entry) -> str:
    return f"{entry.publisher} {entry.life}"


class TopicLog:
    """Entries from `base` up to `end`; those before `committed` will never change."""

    def __init__(self) -> None:
        self.base = 0
        self.committed = 0
        self.epoch = 0
        """The latest reign that this node obeys: it keeps nothing for an earlier one."""
        self._base_epoch = 0
        self._entries: deque[Entry] = deque()
        self._next_sequences: dict[str, int] = {}
        self._base_sequences: dict[str, int] = {}
        """The same as it was at `base`."""

    @property
    def end(self) -> int:
        return self.base + len(self._entries)

    @property
    def last_epoch(self) -> int:
        return self.epoch_before(self.end)

    @property
    def publishers(self) -> int:
        return len(self._next_sequences)

    def epoch_before(self, offset: int) -> int:
        """The epoch of the entry before an offset."""
        return self._base_epoch if offset <= self.base else self._entries[offset - 1 - self.base].epoch

    def next_sequence(self, publisher: str) -> int:
        return self._next_sequences.get(publisher, 0)

    def base_sequences(self) -> tuple[tuple[str, int], ...]:
        return tuple(self._base_sequences.items())

    def slice(self, first: int, end: int) -> tuple[Entry, ...]:
        assert self.base <= first
        return tuple(islice(self._entries, first - self.base, max(first, end) - self.base))

    def append(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._next_sequences[publisher_of(entry)] = entry.sequence + 1

    def merge(self, first: int, entries: Iterable[Entry]) -> None:
        """Takes over entries of a later log; what is different behind the first of them goes."""
        for offset, entry in enumerate(entries, first):
            if offset < self.committed:
                continue  # It is the same everywhere.
            if offset < self.end and self.epoch_before(offset + 1) != entry.epoch:
                self.truncate(offset)
            if offset == self.end:
                self.append(entry)

    def truncate(self, end: int) -> None:
        """Drops what came after an offset, which nobody has been promised."""
        assert end >= self.committed, "What is committed never goes."
        while self.end > end:
            entry = self._entries.pop()
            self._next_sequences[publisher_of(entry)] = entry.sequence

    def reset(self, base: int, base_epoch: int, publishers: Iterable[tuple[str, int]]) -> None:
        """Begins again behind what is no longer kept anywhere."""
        assert base >= self.committed
        self.base, self._base_epoch, self.committed = base, base_epoch, base
        self._entries.clear()
        self._base_sequences = dict(publishers)
        self._next_sequences = dict(self._base_sequences)

    def shrink(self, messages_max: int) -> None:
        """Lets the oldest go, but nothing that is not committed."""
        while len(self._entries) > messages_max and self.base < self.committed:
            entry = self._entries.popleft()
            self._base_sequences[publisher_of(entry)] = entry.sequence + 1
            self._base_epoch = entry.epoch
            self.base += 1
