"""Asks the web service that writes out numbers: GET URL?text=...&lang=... answers {"text": "..."}.

A text without a number is not worth a request. When the service is away a text comes back as it was, and anyone who
asked is told once for each outage.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from http.client import HTTPException
from urllib.error import URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import ProxyHandler, build_opener

from tidings.errors import InvalidRequest

ANSWER_S = 2.0
ANSWER_BYTES_MAX = 256 * 1024


class Speller:
    """A web service at a URL. `on_away` gets a sentence when it stops answering."""

    def __init__(self, url: str, language: str, on_away: Callable[[str], None]) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise InvalidRequest(f"The web service {url!r} is not a web address: write http://HOST:PORT/spell.")
        self._url = url
        self._language = language
        self._on_away = on_away
        self._away = False
        self._open = build_opener(ProxyHandler({})).open  # It runs with the broker: no proxy lies in between.

    def spell(self, text: str) -> str:
        """The text with its numbers in words, or as it is when nobody can say."""
        if not any(map(str.isnumeric, text)):
            return text
        try:
            spelled = self._ask(text)
        except (OSError, HTTPException, ValueError) as error:  # JSON and UTF-8 raise ValueErrors.
            if not self._away:
                reason = error.reason if isinstance(error, URLError) else error
                self._on_away(f"The web service {self._url} does not answer ({reason}): numbers stay digits.")
            self._away = True
            return text
        self._away = False
        return spelled

    def _ask(self, text: str) -> str:
        question = urlencode({"text": text, "lang": self._language})
        separator = "&" if urlsplit(self._url).query else "?"
        with self._open(f"{self._url}{separator}{question}", timeout=ANSWER_S) as answer:
            found = json.loads(answer.read(ANSWER_BYTES_MAX))
        spelled = found.get("text") if isinstance(found, dict) else None
        if not isinstance(spelled, str):
            raise ValueError("its answer has no text")
        return spelled
