"""Stored batches that groups are at work on, unpacked.

A group looks at a batch when it is shared out and once more for every batch that takes messages from it, and
members that are slower than others come to it late: what waits for one of eight members lies scattered over eight
times as many messages of the topic. Reading such a batch again costs several times what is taken from it, so a
good many are kept.
"""

from __future__ import annotations

from collections.abc import Callable

from tidings.message import Columns

MESSAGES_MAX = 262_144
BYTES_MAX = 64 * 1024 * 1024


class Unpacked:
    """The batches used last, as many as fit into these bounds; the last one always does.

    >>> unpacked = Unpacked(messages_max=3)
    >>> for address in (1, 2, 1, 3):
    ...     columns = unpacked.get(address, 10, lambda: Columns(1, "ann", [b"a", b"b"]))
    >>> unpacked.addresses
    [3]
    """

    def __init__(self, messages_max: int = MESSAGES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._messages = 0
        self._bytes = 0
        self._batches: dict[int, tuple[Columns, int]] = {}
        """address -> columns and stored size, those used last at the end."""

    @property
    def addresses(self) -> list[int]:
        """Of which batches it has the columns, those used last at the end."""
        return list(self._batches)

    def get(self, address: int, size_bytes: int, unpack: Callable[[], Columns]) -> Columns:
        """The columns of the batch that is stored at this address."""
        found = self._batches.pop(address, None)
        if found is None:
            found = (unpack(), size_bytes)
            self._messages += len(found[0].values)
            self._bytes += size_bytes
            while self._batches and (self._messages > self._messages_max or self._bytes > self._bytes_max):
                columns, dropped_bytes = self._batches.pop(next(iter(self._batches)))
                self._messages -= len(columns.values)
                self._bytes -= dropped_bytes
        self._batches[address] = found
        return found[0]
