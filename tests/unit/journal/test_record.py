"""A record comes back as it was written, and only from where it was written."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.errors import StorageDamaged
from tidings.journal.blocks import BLOCK_BYTES, Blocks
from tidings.journal.disk import Buffer
from tidings.journal.record import (
    COMMAND,
    HEADER_SIZE,
    LOCAL,
    REPLICA,
    SUMMED_ONCE_MIN,
    Append,
    Record,
    decode,
    encode,
    encode_all,
    scan,
    synced_behind,
)

appends = st.builds(
    Append,
    kind=st.sampled_from([COMMAND, REPLICA, LOCAL]),
    command=st.binary(max_size=100),
    bodies=st.lists(st.binary(max_size=100), max_size=4).map(tuple),
    time_ms=st.integers(0, 2**64 - 1),
    ballot_number=st.integers(0, 2**64 - 1),
    ballot_node=st.integers(0, 2**32 - 1),
)


def record_of(append: Append, slot: int, address: int) -> Record:
    return Record(
        slot,
        append.kind,
        append.time_ms,
        append.ballot_number,
        append.ballot_node,
        append.command,
        address + HEADER_SIZE + len(append.command),
        sum(map(len, append.bodies)),
    )


def encoded(append: Append, slot: int, address: int, durable_address: int = 0) -> bytes:
    buffers: list[Buffer] = []
    encode(append, record_of(append, slot, address), durable_address, buffers)
    return b"".join(buffers)


@given(appends, st.integers(0, 2**60), st.integers(0, 2**60), st.binary(max_size=50))
def test_round_trip(append: Append, slot: int, base_address: int, before: bytes) -> None:
    address = base_address + len(before)
    view = memoryview(before + encoded(append, slot, address) + b"behind")
    record = decode(view, len(before), base_address)
    assert record == record_of(append, slot, address)
    bodies_at = record.body_address - base_address
    assert view[bodies_at : bodies_at + record.bodies_size] == b"".join(append.bodies)
    assert record.end_address == base_address + len(view) - len(b"behind")


def test_no_flipped_bit_and_no_truncation_passes_for_a_record() -> None:
    data = encoded(Append(COMMAND, b"command", (b"body", b"another"), 5, 6, 7), 3, 1000)
    assert decode(memoryview(data), 0, 1000) is not None
    for position in range(len(data)):
        assert decode(memoryview(data[:position]), 0, 1000) is None
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            assert decode(memoryview(flipped), 0, 1000) is None


@given(appends, st.integers(0, 2**40), st.integers(1, 2**31))
def test_a_record_is_valid_only_at_its_own_address(append: Append, address: int, shift: int) -> None:
    data = memoryview(encoded(append, 0, address))
    assert decode(data, 0, address) is not None
    assert decode(data, 0, address + shift) is None


def test_scan_ends_at_the_first_invalid_record() -> None:
    first = encoded(Append(COMMAND, b"a", (b"x",)), 8, 0)
    second = encoded(Append(COMMAND, b"b"), 9, len(first))
    found = list(scan(memoryview(first + second + b"TDJ1 and rubbish" * 9), 0, 0, 8, "name"))
    assert [(record.slot, record.command) for record in found] == [(8, b"a"), (9, b"b")]


def test_a_slot_out_of_order_is_damage() -> None:
    data = encoded(Append(COMMAND, b"a"), 9, 0)
    with pytest.raises(StorageDamaged, match=r"x.journal is damaged at position 0: slot 9 is there instead of 8"):
        list(scan(memoryview(data), 0, 0, 8, "x.journal"))


def test_only_a_record_written_after_a_sync_proves_it() -> None:
    """The torn-tail rule of the record's module: an equal address proves nothing, one above does."""
    rubbish = bytes(40)
    for durable_address, proves in ((0, False), (100, False), (101, True), (140, True), (141, False)):
        data = rubbish + encoded(Append(COMMAND, b"a"), 5, 140, durable_address)
        assert synced_behind(memoryview(data), 0, 100) is proves, durable_address


def test_a_proof_is_found_across_the_windows_of_the_search() -> None:
    for size in range((1 << 20) - 60, (1 << 20) + 4):
        data = bytes(size) + encoded(Append(COMMAND, b"a"), 5, size, 1)
        assert synced_behind(memoryview(data), 0, 0)


def test_a_message_that_quotes_a_journal_proves_nothing() -> None:
    quoted = encoded(Append(COMMAND, b"a"), 5, 50, 40)
    torn = bytes(30) + encoded(Append(COMMAND, b"b", (quoted,)), 1, 30)[HEADER_SIZE:]
    assert not synced_behind(memoryview(torn), 0, 0)


sizes = st.sampled_from(
    [0, 1, 100, SUMMED_ONCE_MIN - 1, SUMMED_ONCE_MIN, BLOCK_BYTES - HEADER_SIZE, BLOCK_BYTES, 3 * BLOCK_BYTES + 7]
)


@given(
    st.integers(0, 2 * BLOCK_BYTES), st.lists(st.lists(sizes, max_size=3), max_size=5), st.builds(Random, st.integers())
)
def test_one_pass_gives_the_same_bytes_and_the_same_sums(before: int, bodies: list[list[int]], random: Random) -> None:
    commits = [[Append(COMMAND, b"put", tuple(map(random.randbytes, each)))] for each in bodies]
    commits.append([append for commit in commits for append in commit])
    data = random.randbytes(before)
    blocks = Blocks()
    blocks.extend([data])
    for appends in commits:
        records = []
        for append in appends:
            records.append(record_of(append, len(records), records[-1].end_address if records else len(data)))
        plain: list[Buffer] = []
        for append, record in zip(appends, records, strict=True):
            encode(append, record, 9, plain)
        written, more = b"".join(plain), blocks.end()
        assert b"".join(encode_all(appends, records, 9, more)) == written
        blocks.join(more)
        data += written
    whole = Blocks()
    whole.extend([data])
    assert (blocks.size, blocks.pack()) == (len(data), whole.pack())
