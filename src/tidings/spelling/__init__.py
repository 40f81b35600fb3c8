"""Numbers in a text become words: `spell("I have 2 cats", "en")`.

    reading.py   finds what is a number in a text, and leaves alone what only looks like one
    words.py     says a number in words
    languages.py how each language writes numbers, and which words it joins them with

It needs num2words (the extra `web`) and nothing else of tidings but its errors. Nothing here
keeps state but a bounded cache, so that it may be called from any thread and from any Spark task. What is a number and
what is not: docs/spelling.md.
"""

from tidings.spelling.languages import LANGUAGES
from tidings.spelling.reading import spell

__all__ = ["LANGUAGES", "spell"]
