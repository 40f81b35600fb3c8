"""A number in words.

The words up to 999 are num2words's, and are joined here: so they can all be kept in a small cache, which makes long
numbers quick, and the rules of each language are kept where num2words does not. Spanish says `veintiún mil` and not
`veintiuno mil`; Portuguese puts its `e` before the last class of three digits only where that is below 100 or full
hundreds.
Ordinals are num2words's with its misspellings mended.
"""

from __future__ import annotations

from functools import lru_cache

from num2words import num2words

from tidings.spelling.languages import Language

MILLION = 1_000_000

ENGLISH_SCALE = (
    *(
        "thousand",
        "million",
        "billion",
        "trillion",
        "quadrillion",
        "quintillion",
        "sextillion",
        "septillion",
        "octillion",
    ),
    *("nonillion", "decillion", "undecillion", "duodecillion", "tredecillion", "quattuordecillion", "quindecillion"),
    "sexdecillion",
)
SPANISH_SCALE = (
    ("millón", "millones"),
    ("billón", "billones"),
    ("trillón", "trillones"),
    ("cuatrillón", "cuatrillones"),
)
"""The names of 10^6, 10^12 and so on: one for every six digits."""
PORTUGUESE_SCALE = (
    ("milhão", "milhões"),
    ("bilião", "biliões"),
    ("trilião", "triliões"),
    ("quatrilião", "quatriliões"),
)
"""The same for Portugal."""
BRAZILIAN_SCALE = (("milhão", "milhões"), ("bilhão", "bilhões"), ("trilhão", "trilhões"), ("quatrilhão", "quatrilhões"))
"""The names of 10^6, 10^9 and so on: one for every three digits."""

ORDINAL_MENDINGS = {
    "es": (
        ("décimoprimero", "undécimo"),
        ("décimosegundo", "duodécimo"),
        ("décimo tercero", "decimotercero"),
        ("décimo cuarto", "decimocuarto"),
        ("décimo quinto", "decimoquinto"),
        ("décimo sexto", "decimosexto"),
        ("décimo séptimo", "decimoséptimo"),
        ("décimo octavo", "decimoctavo"),
        ("décimo noveno", "decimonoveno"),
        ("quadragésimo", "cuadragésimo"),
        ("cuadrigentésimo", "cuadringentésimo"),
        ("septigentésimo", "septingentésimo"),
        ("octigentésimo", "octingentésimo"),
    ),
    "pt": (
        ("quadrigentésimo", "quadringentésimo"),
        ("septigentésimo", "septingentésimo"),
        ("octigentésimo", "octingentésimo"),
    ),
}


def cardinal(number: int, language: Language) -> str:
    """A whole number, not below zero, in words.

    >>> from tidings.spelling.languages import LANGUAGES
    >>> cardinal(21_001, LANGUAGES["es"]), cardinal(1_200, LANGUAGES["pt"])
    ('veintiún mil uno', 'mil e duzentos')
    """
    assert 0 <= number < 10**language.digits_max
    match language.name:
        case "es":
            return _spanish(number, language)
        case "pt":
            return _portuguese(number, language)
        case "pt-BR":
            return _brazilian(number, language)
        case _:
            return _english(number, language)


def ordinal(number: int, ending: str, language: Language) -> str | None:
    """The ordinal that is written as a number and an ending, or None if the language does not write it so.

    >>> from tidings.spelling.languages import LANGUAGES
    >>> ordinal(22, "nd", LANGUAGES["en"]), ordinal(22, "ª", LANGUAGES["es"]), ordinal(22, "th", LANGUAGES["en"])
    ('twenty-second', 'vigésima segunda', None)
    """
    if not 1 <= number <= language.ordinal_max:
        return None
    if language.name == "en":
        return _english(number, language, "ordinal") if ending == _english_ending(number) else None
    words = _library(number, language, "ordinal")
    for wrong, right in ORDINAL_MENDINGS[language.name.partition("-")[0]]:
        words = words.replace(wrong, right)
    if ending == "ª":
        return " ".join(f"{word[:-1]}a" for word in words.split())
    if ending == "er":  # Only primero and tercero lose their end before a noun.
        return words[:-1] if words.endswith(("primero", "tercero")) else None
    return words


def before_noun(words: str, number: int, language: Language) -> str:
    """The words of a whole number when what it counts comes next, which is taken for masculine.

    >>> from tidings.spelling.languages import LANGUAGES
    >>> before_noun("veintiuno", 21, LANGUAGES["es"]), before_noun("um milhão", 1_000_000, LANGUAGES["pt"])
    ('veintiún', 'um milhão de')
    """
    if language.name == "en":
        return words
    if number and number % MILLION == 0:
        return f"{words} de"
    return _shortened(words) if language.name == "es" else words


@lru_cache(maxsize=8192)
def _library(number: int, language: Language, kind: str = "cardinal") -> str:
    assert 0 <= number <= 1000
    return str(num2words(number, lang=language.library_name, to=kind))


def _english(number: int, language: Language, kind: str = "cardinal") -> str:
    rest = number % 1000
    said = [
        f"{_library(piece, language)} {ENGLISH_SCALE[place]}"
        for place, piece in reversed(list(enumerate(_classes(number // 1000, 1000))))
        if piece
    ]
    if not said:
        return _library(rest, language, kind)
    higher = ", ".join(said)
    if rest:
        return f"{higher}{' and ' if rest < 100 else ', '}{_library(rest, language, kind)}"
    return f"{higher}th" if kind == "ordinal" else higher


def _english_ending(number: int) -> str:
    if 11 <= number % 100 <= 13:
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def _classes(number: int, size: int) -> list[int]:
    """A number cut into pieces below `size`, the lowest first.

    >>> _classes(12_345_678, 1000)
    [678, 345, 12]
    """
    pieces = []
    while number:
        number, piece = divmod(number, size)
        pieces.append(piece)
    return pieces


def _shortened(words: str) -> str:
    """Spanish `uno` before what it counts, be it a noun, mil or millones."""
    if words.endswith("veintiuno"):
        return f"{words[:-3]}ún"
    return words[:-1] if words.endswith("uno") else words


def _spanish(number: int, language: Language) -> str:
    if number < 1000:
        return _library(number, language)
    if number < MILLION:
        thousands, rest = divmod(number, 1000)
        said = ["mil" if thousands == 1 else f"{_shortened(_spanish(thousands, language))} mil"]
        return " ".join(said + ([_spanish(rest, language)] if rest else []))
    said = []
    for place, piece in reversed(list(enumerate(_classes(number, MILLION)))):
        if piece and place:
            said.append(f"{_shortened(_spanish(piece, language))} {SPANISH_SCALE[place - 1][piece > 1]}")
        elif piece:
            said.append(_spanish(piece, language))
    return " ".join(said)


def _portuguese(number: int, language: Language) -> str:
    """Portugal counts a million millions before it needs a new name, so its pieces have six digits."""
    if number < 1000:
        return _library(number, language)
    pieces = _classes(number, MILLION)
    said = [
        f"{_portuguese(piece, language)} {PORTUGUESE_SCALE[place - 1][piece > 1]}"
        for place, piece in reversed(list(enumerate(pieces)))
        if piece and place
    ]
    if pieces[0]:
        return _joined(said + _thousands(pieces[0], language), pieces[0])
    last = next(piece for piece in pieces if piece)
    # 1200 million is said with an `e` of its own, `mil e duzentos milhões`, and takes none before it.
    return _joined(said, last) if last < 1000 or last % 1000 == 0 else " ".join(said)


def _brazilian(number: int, language: Language) -> str:
    if number < 1000:
        return _library(number, language)
    said = []
    for place, piece in reversed(list(enumerate(_classes(number, 1000)[2:]))):
        if piece:
            said.append(f"{_library(piece, language)} {BRAZILIAN_SCALE[place][piece > 1]}")
    return _joined(said + _thousands(number % MILLION, language), number)


def _thousands(number: int, language: Language) -> list[str]:
    """The thousands and the rest of a number below a million, each if it has them."""
    thousands, rest = divmod(number, 1000)
    said = []
    if thousands:
        said.append("mil" if thousands == 1 else f"{_library(thousands, language)} mil")
    if rest:
        said.append(_library(rest, language))
    return said


def _joined(said: list[str], number: int) -> str:
    """Classes in a row, with `e` before the last where Portuguese wants it."""
    while number % 1000 == 0:
        number //= 1000
    last = number % 1000
    if len(said) > 1 and (last < 100 or last % 100 == 0):
        return f"{' '.join(said[:-1])} e {said[-1]}"
    return " ".join(said)
