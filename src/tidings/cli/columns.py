"""Aligned columns that are never cut: for tables that are also read by `awk` and in logs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidings.cli.output import harmless

Cell = str | int


def aligned(titles: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Rows under their titles; numbers stand to the right.

    >>> print(aligned(["node", "messages"], [["a", 1200], ["bcd", 7]]))
    node  messages
    a        1,200
    bcd          7
    """
    cells = [list(row) for row in rows]
    texts = [[f"{cell:,}" if isinstance(cell, int) else harmless(cell) for cell in row] for row in cells]
    right = [bool(cells) and isinstance(cells[0][column], int) for column in range(len(titles))]
    widths = [max(map(len, column)) for column in zip(titles, *texts, strict=True)]
    lines = []
    for row in [list(titles), *texts]:
        line = [
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(line).rstrip())
    return "\n".join(lines)
