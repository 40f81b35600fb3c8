"""Numbers in a text: which characters are one, and which only look like one.

One regular expression for each language finds the candidates in one pass, in time linear in the text: no quantifier
in it can give back what it took. A number stands by itself. What is joined to letters or other digits - `abc123`,
`1.2.3`, `2022-10-05`, `10:30`, `5/6`, `covid-19` - is something else, and stays.
"""

from __future__ import annotations

import re
from functools import lru_cache

from tidings.spelling.languages import Language, language
from tidings.spelling.words import before_noun, cardinal, ordinal

FRACTION_DIGITS_MAX = 30
"""A longer fraction stays as it is, and its number with it."""

SPACES = "\u00a0\u2009\u202f"
"""Spaces that do not break a line, the mark between thousands in international notation."""

HYPHENS = r"\-\u2013\u2212"  # hyphen, en dash, minus sign
JOINING = r"'\u2019*^~&|<>\u00d7\u00f7"  # apostrophes, and signs between two quantities
OPENING = r"\s(\[{\"'\u201c\u2018\u00ab\u00bf\u00a1"  # what may stand before a word, quotation marks among it
CLOSING = r")\]\"\u201d\u00bb"

FREE = rf"(?:(?<![\w.,:/\\@#=+{HYPHENS}])(?<!\w[{JOINING}])|(?<=[^\W\d_][,:])|(?<=[{CLOSING}][,:]))"
"""Nothing is joined to the left. A comma or a colon there must end a word: after a digit it may be part of a number."""
MINUS = rf"(?<![^{OPENING}])(?P<minus>[-\u2212])"
"""A hyphen is a minus at the beginning of a word, and nowhere else."""
ALONE = rf"(?![\w\ufe0f\u20e3])(?![{HYPHENS}{JOINING}.+@#=]\w)(?![.,:]\d)(?![/\\])"
"""Nothing is joined to the right."""
ADDRESS = re.compile(r"(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?:25[0-5]|2[0-4]\d|1\d\d)){3}")
"""An IP address that would pass for a number with points between its thousands: 192.168.100.200."""


def spell(text: str, lang: str = "en") -> str:
    """The text with its numbers in words. InvalidRequest, with the list of languages, if there is no such language.

    >>> spell("I have 2 cats and 1,234.5 reasons; see 1.2.3 of 2022-10-05.")
    'I have two cats and one thousand, two hundred and thirty-four point five reasons; see 1.2.3 of 2022-10-05.'
    >>> spell("El 1.er día hubo 21 gatos y -3,5 grados", "es")
    'El primer día hubo veintiún gatos y menos tres coma cinco grados'
    """
    pattern, spoken = _pattern(lang), language(lang)
    return pattern.sub(lambda match: _in_words(match, spoken), text)


@lru_cache(maxsize=32)
def _pattern(lang: str) -> re.Pattern[str]:
    spoken = language(lang)
    thousands, decimal = re.escape(spoken.thousands_mark), re.escape(spoken.decimal_mark)
    endings = "|".join(map(re.escape, spoken.ordinal_endings))
    point = "" if spoken.name == "en" else r"\.?"  # Spanish and Portuguese write 1.º as well as 1º.
    grouped = rf"[1-9][0-9]{{0,2}}(?P<mark>[{thousands}{SPACES}])[0-9]{{3}}(?:(?P=mark)[0-9]{{3}})*+(?![0-9])"
    plain = r"(?:0|[1-9][0-9]*+)(?![0-9])"  # 007 is a code and not a number.
    return re.compile(
        rf"(?:{MINUS}|{FREE})(?P<whole>{grouped}|{plain})"
        rf"(?:{decimal}(?P<fraction>[0-9]++)|{point}(?P<ending>{endings}))?+{ALONE}"
        r"(?=(?:[ \u00a0](?P<next>[^\W\d_]++))?+)",
        re.IGNORECASE,
    )


def _in_words(match: re.Match[str], spoken: Language) -> str:
    whole, fraction, ending = match["whole"], match["fraction"], match["ending"]
    digits = whole.replace(match["mark"], "") if match["mark"] else whole
    if len(digits) > spoken.digits_max or len(fraction or "") > FRACTION_DIGITS_MAX or ADDRESS.fullmatch(whole):
        return match[0]
    number = int(digits)
    if ending is not None:
        return match[0] if match["minus"] else ordinal(number, ending.lower(), spoken) or match[0]
    words = cardinal(number, spoken)
    if fraction is not None:
        words = " ".join([words, spoken.decimal_word, *(cardinal(int(digit), spoken) for digit in fraction)])
    elif match["next"] is not None and match["next"].lower() not in spoken.particles:
        words = before_noun(words, number, spoken)
    return f"{spoken.minus_word} {words}" if match["minus"] else words
