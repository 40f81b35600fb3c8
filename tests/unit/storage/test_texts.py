"""The positions of texts: what cannot be trusted is not, and every text is written again then."""

from __future__ import annotations

from pathlib import Path

from tidings.storage.texts import POSITIONS_NAME, Texts


def test_damaged_positions_are_not_taken_for_others(tmp_path: Path) -> None:
    """Wrong ones would leave out messages, or write them twice."""
    texts = Texts(tmp_path)
    texts.checkpoint(4_711)
    assert Texts(tmp_path).address == 4_711
    whole = (tmp_path / POSITIONS_NAME).read_bytes()
    for position in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            (tmp_path / POSITIONS_NAME).write_bytes(damaged)
            assert Texts(tmp_path).address == 0
    (tmp_path / POSITIONS_NAME).write_bytes(whole)
    assert Texts(tmp_path).address == 4_711
