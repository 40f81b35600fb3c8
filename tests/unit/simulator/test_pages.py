"""The tables of planted bugs in docs/ have all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidings.simulator.worlds import SHARES
from tidings_lab.bugs import MUTANTS

DOCS = Path(__file__).resolve().parents[3] / "docs"
TABLE = re.compile(r"^\| (?:mutant|planted bug) \| what it does \|\n\|---\|---\|\n((?:\|.*\n)*)", re.MULTILINE)
WITHOUT_ROWS = {
    *("ignore-the-mark", "mark-follows-file", "cut-what-is-damaged", "skip-what-is-damaged", "forget-oldest"),
    *("forget-newest", "begin-anew", "read-unchecked", "zeros-for-damage", "snapshot-unchecked"),
}
"""The ten of `bugs/tampering.py`, which the page only counts."""


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def test_every_planted_bug_has_a_row() -> None:
    tables = [table for page in ("simulator.md", "replication.md") for table in TABLE.findall(text_of(page))]
    rows = [name for table in tables for name in re.findall(r"^\| `([a-z-]+)` ", table, re.MULTILINE)]
    planted = {name for name, mutant in MUTANTS.items() if mutant.world in SHARES}
    assert set(rows) == planted - WITHOUT_ROWS
    assert len(rows) == len(set(rows))
    assert len(WITHOUT_ROWS) == 10 and "Ten more are" in text_of("simulator.md")


@pytest.mark.parametrize(
    ("page", "sentence", "worlds"),
    [
        ("replication.md", r"There are (\d+) of them, one for nearly", ("paxos",)),
        ("ring.md", r"plants (\d+) bugs", ("ring-churn", "ring-multicast")),
        ("overlay.md", r"plants (\d+) faults", ("overlay-",)),
    ],
)
def test_a_page_counts_right(page: str, sentence: str, worlds: tuple[str, ...]) -> None:
    count = sum(mutant.world.startswith(worlds) for mutant in MUTANTS.values())
    assert re.findall(sentence, text_of(page)) == [str(count)]
