"""What the broker keeps unpacked for groups."""

from __future__ import annotations

from tidings.message import Columns
from tidings.node.unpacked import Unpacked


class Store:
    """Batches by address, and how often each was unpacked."""

    def __init__(self, unpacked: Unpacked) -> None:
        self.unpacked = unpacked
        self.reads: list[int] = []

    def look(self, address: int, messages: int = 10, size_bytes: int = 100) -> None:
        def unpack() -> Columns:
            self.reads.append(address)
            return Columns(1, "ann", [b"%d" % address] * messages)

        columns = self.unpacked.get(address, size_bytes, unpack)
        assert columns.values == [b"%d" % address] * messages


def test_a_batch_in_use_is_unpacked_once() -> None:
    store = Store(Unpacked(messages_max=30))
    for address in (1, 2, 1, 3, 1, 4, 1, 5, 1):
        store.look(address)
    assert store.reads == [1, 2, 3, 4, 5]
    assert store.unpacked.addresses == [4, 5, 1]


def test_many_messages_and_large_ones_are_bounded() -> None:
    store = Store(Unpacked(messages_max=30, bytes_max=1_000))
    for address in range(10):
        store.look(address)
    assert store.unpacked.addresses == [7, 8, 9]
    store.look(10, messages=1, size_bytes=950)
    assert store.unpacked.addresses == [10]


def test_a_batch_above_the_bounds_is_there_until_the_next() -> None:
    store = Store(Unpacked(messages_max=30, bytes_max=1_000))
    store.look(1, messages=31, size_bytes=5_000)
    assert store.unpacked.addresses == [1]
    store.look(2)
    assert store.unpacked.addresses == [2]
