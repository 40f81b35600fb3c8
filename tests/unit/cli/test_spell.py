"""`tidings spell`: the same words at the command line."""

from __future__ import annotations

import io
import json
import sys

import pytest

from tidings.cli import main


def test_a_text_is_printed_with_its_numbers_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spell", "I have 2 cats"]) == 0
    assert capsys.readouterr() == ("I have two cats\n", "")
    assert main(["spell", "--lang", "es", "--json", "21 años"]) == 0
    assert json.loads(capsys.readouterr().out) == {"text": "veintiún años", "lang": "es"}


def test_lines_of_the_input(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Bytes that are no text come out as they went in, except in JSON, which cannot hold them."""
    for flags, expected in (
        ([], b"a\xff two\nthree\n"),
        (["--json"], '{"text": "a\ufffd two", "lang": "en"}\n'.encode()),
    ):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xff 2\n3")))
        assert main(["spell", *flags]) == 0
        assert capfdbinary.readouterr().out.startswith(expected)


def test_an_unknown_language_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spell", "2", "--lang", "xx"]) == 1
    assert capsys.readouterr() == ("", "There is no language 'xx': choose one of en, es, pt, pt-BR.\n")


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("tidings.spelling")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "num2words", None)
    assert main(["spell", "2"]) == 1
    expected = "tidings spell needs num2words, which is not installed: pip install '.[web]' in a checkout.\n"
    assert capsys.readouterr() == ("", expected)
