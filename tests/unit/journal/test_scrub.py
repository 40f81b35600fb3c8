"""The pace of the scrub: a little at every tick, and all of the journal within its time."""

from __future__ import annotations

import pytest

from tidings.journal.checked import DamagedPlace
from tidings.journal.scrub import PACE_MIN, SLICE_BYTES_MAX, Scrub

TICK_MS = 100
TERABYTE = 10**12


class Files:
    """Files of some size, which only count what is read of them."""

    remote = False

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.rounds = self.largest = 0

    def scrub(self, address: int, size: int) -> tuple[int, list[DamagedPlace]]:
        self.largest = max(self.largest, size)
        if address + size >= self.size_bytes:
            self.rounds += 1
            return 0, []
        return address + size, []


@pytest.mark.parametrize("size_bytes", [10_000, 64 * 1024 * 1024, TERABYTE])
def test_everything_is_read_within_its_time_a_little_at_a_time(size_bytes: int) -> None:
    files = Files(size_bytes)
    scrub = Scrub(files, 24.0)
    for now_ms in range(0, 25 * 3600 * 1000, TICK_MS):
        scrub.tick(now_ms)
        if files.rounds:
            break
    assert files.rounds == 1
    assert files.largest <= SLICE_BYTES_MAX
    assert now_ms <= max(24 * 3600, 2 * size_bytes / PACE_MIN) * 1000 + 1_000


def test_after_a_pause_no_more_is_read_at_once_than_ever() -> None:
    files = Files(TERABYTE)
    scrub = Scrub(files, 24.0)
    for now_ms in (0, 1_000, 10**9):
        scrub.tick(now_ms)
    assert files.largest == SLICE_BYTES_MAX


def test_files_in_flight_of_another_process_are_left_to_it() -> None:
    files = Files(TERABYTE)
    files.remote = True
    scrub = Scrub(files, 24.0)
    for now_ms in range(0, 10_000, TICK_MS):
        assert scrub.tick(now_ms) == []
    assert files.largest == 0
