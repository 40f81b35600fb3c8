"""CONTRIBUTING.md, SECURITY.md and the workflows name files, tests and targets that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
SOURCE = TOP / "src" / "tidings"
LAB = TOP / "lab" / "tidings_lab"
PAGES = ["CONTRIBUTING.md", "SECURITY.md"]
WORKFLOWS = sorted((TOP / ".github" / "workflows").glob("*.yml"))

_FILE = re.compile(r"`([\w./-]+\.(?:py|md|txt|toml|yml)(?:::\w+)?)`|`((?:[\w-]+/)+)`")
_TARGET = re.compile(r"^([a-z]+):", re.MULTILINE)


def missing(text: str) -> list[str]:
    """Every path in backticks that is in none of the folders above, and every test that it lacks."""
    found = []
    for file, folder in _FILE.findall(text):
        path, _, test = (file or folder).partition("::")
        there = [base / path for base in (TOP, SOURCE, LAB) if (base / path).exists()]
        if not there and "NAME" not in path and path not in ("tidings.toml", "clients/"):
            found.append(path)
        if there and test and f"def {test}(" not in there[0].read_text(encoding="utf-8"):
            found.append(test)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page: str) -> None:
    assert missing((TOP / page).read_text(encoding="utf-8")) == []


def test_what_is_not_there_is_noticed() -> None:
    text = "`cli/nothing.py`, `tests/nowhere/`, `tests/unit/test_links.py::test_nothing` and `errors.py`"
    assert missing(text) == ["cli/nothing.py", "tests/nowhere/", "test_nothing"]


def test_every_target_that_is_named_is_in_the_makefile() -> None:
    named = re.findall(r"(?:^|`)make ([a-z]+)", (TOP / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(named) - {"check"} <= set(_TARGET.findall((TOP / "Makefile").read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_the_tests_that_a_workflow_names_are_there(path: Path) -> None:
    named = re.findall(r"(?:tests|requirements|\.ci)[\w./-]*", path.read_text(encoding="utf-8"))
    assert named
    assert [name for name in named if not (TOP / name).exists()] == []
