"""E6: every number in a text becomes words, by the rules of its language, and nothing else is touched."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.errors import InvalidRequest
from tidings.spelling import LANGUAGES, spell
from tidings.spelling.words import cardinal, ordinal

CASES = [
    tuple(line.split("\t"))
    for line in (Path(__file__).parent / "spelling.tsv").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("# ")
]
SOURCE = Path(__file__).resolve().parents[3] / "src"


@pytest.mark.parametrize(("lang", "text", "expected"), CASES)
def test_case(lang: str, text: str, expected: str) -> None:
    assert spell(text, lang) == expected


def test_there_are_200_cases_in_every_language() -> None:
    assert len(CASES) == len({(lang, text) for lang, text, _ in CASES}) == 200
    assert {lang for lang, _, _ in CASES} == set(LANGUAGES)


def test_an_unknown_language_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match="'xx': choose one of en, es, pt, pt-BR"):
        spell("2", "xx")


def test_the_page_tells_the_truth() -> None:
    page = (SOURCE.parent / "docs" / "spelling.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\S+) \| `(.+?)` \| (?:`(.+?)`|the same) \|$", page, re.MULTILINE)
    assert len(rows) == 9
    for lang, text, becomes in rows:
        assert spell(text, lang) == (becomes or text)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_number_without_a_name_stays_as_it_is(lang: str) -> None:
    digits_max = LANGUAGES[lang].digits_max
    longest = "9" * digits_max
    assert not set(spell(longest, lang)) & set("0123456789")
    for digits in (digits_max + 1, 300, 5000):
        assert spell(f"a {'9' * digits} b", lang) == f"a {'9' * digits} b"
    mark = LANGUAGES[lang].decimal_mark
    assert spell(f"1{mark}{'5' * 31}", lang) == f"1{mark}{'5' * 31}"


@pytest.mark.parametrize("lang", LANGUAGES)
def test_ordinals_end_where_the_language_has_no_sure_form(lang: str) -> None:
    ending = {"en": "th"}.get(lang, "º")
    last = LANGUAGES[lang].ordinal_max
    assert ordinal(1000, ending, LANGUAGES[lang]) is not None
    assert ordinal(last + 1, ending, LANGUAGES[lang]) is None
    assert ordinal(0, ending, LANGUAGES[lang]) is None


@pytest.mark.parametrize("space", ["\u00a0", "\u202f", "\u2009"])
def test_a_space_that_does_not_break_marks_thousands_everywhere(space: str) -> None:
    assert spell(f"1{space}234", "en") == "one thousand, two hundred and thirty-four"
    assert spell(f"1{space}234,5", "es") == "mil doscientos treinta y cuatro coma cinco"


@pytest.mark.parametrize("lang", LANGUAGES)
def test_different_numbers_have_different_words(lang: str) -> None:
    numbers = [*range(2_000), *range(20_000, 22_000), *(10**power for power in range(4, LANGUAGES[lang].digits_max))]
    assert len({cardinal(number, LANGUAGES[lang]) for number in numbers}) == len(set(numbers))


PIECES = st.sampled_from(
    [*"0123456789", "12", "1,234", "1.234", "3,5", *" .,:-\u2013\u2212/'ºª()$€#+=\n", "er", "st", "a", "é", "٣"]
)


@given(st.lists(PIECES, max_size=30).map("".join) | st.text(max_size=50), st.sampled_from(list(LANGUAGES)))
@settings(deadline=None)
def test_no_text_upsets_it_and_what_is_spelled_stays_spelled(text: str, lang: str) -> None:
    """Whatever stood between numbers is still there in its order, and no new numbers appear."""
    spelled = spell(text, lang)
    assert len([c for c in spelled if c.isdigit()]) <= len([c for c in text if c.isdigit()])
    without_digits = iter(spelled)
    assert all(c in without_digits for c in text if not c.isdigit() and c not in "-\u2212.,ºªerstnd\u00a0\u202f\u2009")


@pytest.mark.parametrize("piece", ["1.", "1,", "1,111", ".111", "1-", "-", "1", "1:", "1º", " ", "a", "1,111,11", "1 "])
def test_the_time_grows_no_faster_than_the_text(piece: str) -> None:
    """A pattern that goes back on itself would need minutes for each, and no machine is so slow."""
    began = time.process_time()
    for lang in LANGUAGES:
        spell(piece * (300_000 // len(piece)), lang)
    assert time.process_time() - began < 60


def test_threads_do_not_disturb_each_other() -> None:
    wrong: list[tuple[str, str]] = []

    def work() -> None:
        for lang, text, expected in CASES * 5:
            if spell(text, lang) != expected:
                wrong.append((lang, text))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_it_needs_neither_the_bus_nor_http_and_tidings_needs_neither_of_these() -> None:
    """A Spark task imports only the spelling; a program that imports tidings gets no num2words with it."""
    programs = {
        "import tidings, tidings.cli": ("num2words", "h11", "tidings.spelling", "tidings.gateways"),
        "from tidings.spelling import spell; assert spell('2') == 'two'": ("h11", "tidings.gateways"),
    }
    for program, forbidden in programs.items():
        check = f"import sys; {program}; sys.exit(str(set({forbidden!r}) & set(sys.modules)).replace('set()', '') or 0)"
        done = subprocess.run([sys.executable, "-c", check], cwd=SOURCE, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
