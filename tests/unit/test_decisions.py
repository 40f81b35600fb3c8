"""The records of decisions: numbered without a gap, in one form, and each one listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
RECORDS = sorted(path for path in (DOCS / "decisions").glob("*.md") if path.name != "index.md")
PARTS = ["Context", "Decision", "Consequences"]


def title(path: Path) -> str:
    return path.read_text(encoding="utf-8").splitlines()[0].partition(". ")[2]


def listed(page: Path, pattern: str) -> list[tuple[str, ...]]:
    return re.findall(pattern, page.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_numbers_have_no_gap() -> None:
    assert RECORDS
    assert [int(path.name[:4]) for path in RECORDS] == list(range(1, len(RECORDS) + 1))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_has_its_number_and_its_parts(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# {int(path.name[:4])}. ")
    assert re.findall(r"^## (.+)", text, re.MULTILINE) == PARTS
    assert len(text.splitlines()) <= 30


def test_the_index_and_the_page_of_the_architecture_list_every_record() -> None:
    names = [(title(path), path.name) for path in RECORDS]
    assert listed(DOCS / "decisions" / "index.md", r"^\| \d+ \| \[(.+)\]\((.+)\) \|$") == names
    page = listed(DOCS / "architecture.md", r"^- \[(.+)\]\(decisions/(\d{4}-.+)\)$")
    assert page == names
