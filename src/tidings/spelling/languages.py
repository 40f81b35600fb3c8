"""How each language writes its numbers, and what it needs beyond the words of num2words.

A language is one entry in `LANGUAGES`; what the words of a number are is in `tidings.spelling.words`.
"""

from __future__ import annotations

import dataclasses

from tidings.errors import InvalidRequest


@dataclasses.dataclass(frozen=True, eq=False)  # Each is one object: hashing it must cost nothing.
class Language:
    """The marks and the little words of a language."""

    name: str
    """Its tag, as in BCP 47."""
    library_name: str
    """What num2words calls it."""
    thousands_mark: str
    decimal_mark: str
    decimal_word: str
    """How the decimal mark is said."""
    minus_word: str
    ordinal_endings: tuple[str, ...]
    """What follows the digits of an ordinal, in lower case."""
    digits_max: int
    """Longer numbers have no name that people know: they stay as they are."""
    ordinal_max: int
    """Later ordinals are said in several ways, or in none that is sure: they stay as they are."""
    particles: frozenset[str] = frozenset()
    """Words after a number that are not what it counts: "1 de cada 3"."""


SPANISH_PARTICLES = """
    a al ante antes como con contra cuando de del desde después donde e el en entre era es está están fue fueron
    ha han hasta hay la las le los mas más menos mientras ni no o para pero por pues que se según ser si sin sino
    sobre son su sus también tras u y ya
"""
PORTUGUESE_PARTICLES = """
    a ao aos as até com como contra da das de depois desde do dos e em entre era está estão foi foram há já mais mas
    menos na nas nem no nos não o os ou para pela pelo pois por quando que se sem ser sob sobre são também à às é
"""

ENGLISH = Language(
    name="en",
    library_name="en",
    thousands_mark=",",
    decimal_mark=".",
    decimal_word="point",
    minus_word="minus",
    ordinal_endings=("st", "nd", "rd", "th"),
    digits_max=54,
    ordinal_max=10**54 - 1,
)
SPANISH = Language(
    name="es",
    library_name="es",
    thousands_mark=".",
    decimal_mark=",",
    decimal_word="coma",
    minus_word="menos",
    ordinal_endings=("º", "ª", "er"),
    digits_max=30,
    ordinal_max=1000,
    particles=frozenset(SPANISH_PARTICLES.split()),
)
PORTUGUESE = Language(
    name="pt",
    library_name="pt",
    thousands_mark=".",
    decimal_mark=",",
    decimal_word="vírgula",
    minus_word="menos",
    ordinal_endings=("º", "ª"),
    digits_max=30,
    ordinal_max=1000,
    particles=frozenset(PORTUGUESE_PARTICLES.split()),
)
BRAZILIAN = dataclasses.replace(PORTUGUESE, name="pt-BR", library_name="pt_BR", digits_max=18)

LANGUAGES: dict[str, Language] = {known.name: known for known in (ENGLISH, SPANISH, PORTUGUESE, BRAZILIAN)}


def language(name: str) -> Language:
    """The language of a name; InvalidRequest, which lists them all, if there is none.

    >>> language("pt-BR").decimal_word
    'vírgula'
    """
    found = LANGUAGES.get(name)
    if found is None:
        raise InvalidRequest(f"There is no language {name[:35]!r}: choose one of {', '.join(LANGUAGES)}.")
    return found
