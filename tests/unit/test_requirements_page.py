"""The page of requirements names a proof for each id, and every id that a test names is on the page."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "requirements.md"
IDS = {"Z": 17, "C": 15, "E": 8, "P": 13, "D": 6}
"""How many each of the five documents has."""

_ROW = re.compile(r"^\| ([ZCEPD]\d+) \| .+ \| (.+) \|$", re.MULTILINE)
_LINK = re.compile(r"\[(\w+)\]\(\.\./tests/([\w/]+\.py)\)")
_ID = re.compile(r"\b([ZCEPD]\d+)\b")
PROOFS = dict(_ROW.findall(PAGE.read_text()))


@cache
def named_in(file: Path) -> dict[str, set[str]]:
    """The ids that each test of a file names; "" for what stands above all of them."""
    tree = ast.parse(file.read_text())
    tests = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test")]
    found = {node.name: set(_ID.findall(ast.get_docstring(node) or "")) for node in tests}
    return {**found, "": set(_ID.findall(ast.get_docstring(tree) or ""))}


def test_every_id_is_on_the_page() -> None:
    assert sorted(PROOFS) == sorted(
        f"{letter}{number}" for letter, last in IDS.items() for number in range(1, last + 1)
    )


@pytest.mark.parametrize("requirement", PROOFS)
def test_its_proof_is_there_and_names_it(requirement: str) -> None:
    links = _LINK.findall(PROOFS[requirement])
    assert links, "no test is named"
    for name, path in links:
        file = TESTS / path
        named = named_in(file)
        where = "" if name == file.stem else name
        assert requirement in named[where], f"{name} does not name {requirement}"


def test_no_test_names_an_id_that_is_not_on_the_page() -> None:
    strange = {
        (str(file.relative_to(TESTS)), each)
        for file in TESTS.rglob("test_*.py")
        for ids in named_in(file).values()
        for each in ids - set(PROOFS)
    }
    assert not strange
