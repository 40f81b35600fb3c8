"""Handlers of a user in a simulation: what they are called with, and what their assertions do."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tidings.errors import InvalidRequest
from tidings.message import Message
from tidings.simulator.handlers import run_handlers

TEXTS = [f"order {number}" for number in range(12)]
SEEDS = range(30)
PAGE = Path(__file__).parents[3] / "docs" / "simulator.md"


def booked(seed: int, looks: Callable[[Message], bool]) -> list[str]:
    """What a book has after a run; `looks` says whether the clerk looks into it before booking a message."""
    book: list[str] = []

    def book_it(message: Message) -> None:
        if not (looks(message) and message.text in book):
            book.append(message.text)

    result = run_handlers(seed, {"clerk": book_it}, TEXTS)
    assert result.invariant is None, f"seed {seed}: {result.text}"
    return book


def test_a_careful_handler_has_each_message_once_whatever_crashes() -> None:
    assert [seed for seed in SEEDS if booked(seed, lambda message: True) != TEXTS] == []


def test_a_careless_handler_is_found_out() -> None:
    """Some crash comes between the handler and the acknowledgement."""
    assert [seed for seed in SEEDS if booked(seed, lambda message: False) != TEXTS] != []


def test_a_process_that_works_on_beside_its_successor_is_found_out() -> None:
    """What it was sent before is not marked as redelivered, so the mark alone is not enough."""
    assert [seed for seed in SEEDS if booked(seed, lambda message: message.redelivered) != TEXTS] != []


def test_every_client_gets_everything() -> None:
    seen: dict[str, set[str]] = {"ann": set(), "bob": set()}
    handlers = {name: lambda message, name=name: seen[name].add(message.text) for name in seen}
    result = run_handlers(3, handlers, TEXTS, topic="orders")
    assert (result.invariant, result.world) == (None, "handlers")
    assert seen == {"ann": set(TEXTS), "bob": set(TEXTS)}


def test_an_assertion_of_a_handler_ends_the_run_and_says_where() -> None:
    def refuse(message: Message) -> None:
        assert message.text != "order 5", "nobody pays for five"

    result = run_handlers(1, {"clerk": refuse}, TEXTS, trace=True)
    assert result.invariant is not None
    assert "nobody pays for five" in result.text and "in refuse, line" in result.text
    assert any("is handed order 5" in line for line in result.trace)


def test_a_seed_is_the_same_run_again() -> None:
    runs = [run_handlers(7, {"clerk": str}, TEXTS).trace_hash for _ in range(2)]
    assert runs[0] == runs[1] != run_handlers(8, {"clerk": str}, TEXTS).trace_hash


@pytest.mark.parametrize(
    ("handlers", "texts", "what"),
    [
        ({"publisher": str}, ["a"], "another name"),
        ({"clerk": str}, ["a", "a"], "number them"),
        ({"clerk": str}, ["a|b"], "write another"),
        ({"clerk": str}, [""], "write another"),
        ({"no\nname": str}, ["a"], "name"),
    ],
)
def test_what_cannot_be_told_apart_is_refused(handlers: dict[str, type], texts: list[str], what: str) -> None:
    with pytest.raises(InvalidRequest, match=what):
        run_handlers(0, handlers, texts)


def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    """Also without the lab, which it does not import."""
    [program] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    program += "\nimport sys; assert not [name for name in sys.modules if name.startswith('tidings_lab')]\n"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
