"""The words of `docs/glossary.md` are the words of the code, of its documentation and of `--help`."""

from __future__ import annotations

import io
import re
import tokenize
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tidings.cli import COMMANDS, main

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs/glossary.md"
SOURCES = sorted(file for folder in ("src/tidings", "lab") for file in (ROOT / folder).rglob("*.py"))
PAGES = sorted(
    page for page in [*ROOT.glob("*.md"), *ROOT.glob("lab/*.md"), *(ROOT / "docs").rglob("*.md")] if page != GLOSSARY
)

PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
"""What an identifier is made of: `HandingOff` and `handing_off` are made of the same."""


class Old(NamedTuple):
    """What the glossary has replaced."""

    words: re.Pattern[str]
    """Words that stand nowhere, with their plurals."""
    names: frozenset[str]
    """Everyday words, and other names, that are no identifiers any more."""


@cache
def old() -> Old:
    words: list[str] = []
    names: list[str] = []
    for row in tables(GLOSSARY.read_text(encoding="utf-8").partition("## Exceptions")[0]):
        for each in (piece.strip() for piece in row[-1].split(",") if piece.strip()):
            (names if each.startswith("`") else words).append(each.strip("`"))
    return Old(re.compile(rf"\b({'|'.join(map(re.escape, words))})(s|es)?\b", re.IGNORECASE), frozenset(names))


@cache
def exceptions() -> tuple[str, ...]:
    rows = tables(GLOSSARY.read_text(encoding="utf-8").partition("## Exceptions")[2])
    return tuple(sorted((row[0].strip("`") for row in rows), key=len, reverse=True))


def tables(text: str) -> list[list[str]]:
    """The rows of all tables, without their heads."""
    rows = [
        [cell.strip() for cell in line.strip()[1:-1].split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    return [row for row in rows if row[0] not in ("word", "text") and not row[0].startswith("--")]


def without_exceptions(text: str) -> str:
    for each in exceptions():
        text = text.replace(each, "")
    return text


def words_in(text: str) -> list[str]:
    """The old words of a text, each with what stands around it."""
    text = without_exceptions(text)
    return [text[max(0, found.start() - 30) : found.end() + 30].strip() for found in old().words.finditer(text)]


def faults(source: str) -> list[str]:
    """Old words in the names, comments and texts of a module."""
    found: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            spoken = without_exceptions(token.string)
            if spoken in old().names or old().words.search(" ".join(PARTS.findall(spoken))):
                found.append(f"{token.start[0]}: {token.string}")
        elif token.type in (tokenize.COMMENT, tokenize.STRING):
            found += [f"{token.start[0]}: {each}" for each in words_in(token.string)]
    return found


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_module_uses_an_old_word(file: Path) -> None:
    assert faults(file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_page_uses_an_old_word(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for tag in (each.strip('"') for each in exceptions() if each.startswith('"') and each.endswith('"')):
        text = text.replace(f"`{tag}`", "")
    assert words_in(text) == []


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_no_help_uses_an_old_word(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"] if command else ["--help"]) == 0
    assert words_in(capsys.readouterr().out) == []


def test_every_page_is_read() -> None:
    read = {page.relative_to(ROOT).as_posix() for page in PAGES}
    assert {"README.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "docs/decisions/index.md"} <= read


def test_an_old_word_is_found() -> None:
    assert faults("class GiftCard:\n    visitors = 1  # Whoever it is.\n    elsewhere = 2\n") == [
        "1: GiftCard",
        "2: visitors",
        "2: # Whoever it is.",
        "3: elsewhere",
    ]
    assert words_in("the workshops begin anew; two parcels") == ["the workshops begin anew; two parcels"] * 3


def test_every_exception_is_needed_and_has_a_reason() -> None:
    everything = "\n".join(file.read_text(encoding="utf-8") for file in (*SOURCES, *PAGES))
    rows = tables(GLOSSARY.read_text(encoding="utf-8").partition("## Exceptions")[2])
    assert [row[0] for row in rows if len(row) != 2 or not row[1] or row[0].strip("`") not in everything] == []
