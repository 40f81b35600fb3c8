"""The changelog begins with the version of the package, or with what is not released yet."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import tidings

TEXT = (Path(__file__).resolve().parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
UNRELEASED = "Unreleased"
SECTIONS = [title for title in re.findall(r"^## (.+)$", TEXT, re.MULTILINE) if title != UNRELEASED]


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_the_newest_section_is_that_of_this_version() -> None:
    assert SECTIONS[0].partition(" - ")[0] == tidings.__version__


def test_every_release_has_its_date_and_they_follow_each_other() -> None:
    nacks = [title.partition(" - ") for title in SECTIONS]
    found = [(number(version), date.fromisoformat(day)) for version, _, day in nacks]
    assert found == sorted(found, reverse=True)
    assert len({version for version, _ in found}) == len(found)


def test_what_is_not_released_stands_first() -> None:
    assert TEXT.count(f"## {UNRELEASED}") <= 1
    assert UNRELEASED not in re.findall(r"^## (.+)$", TEXT, re.MULTILINE)[1:]
