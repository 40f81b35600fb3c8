"""The web service that writes out numbers is asked when there is one, and not missed when there is none. E6."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from tests.unit.gateways.spelling_service import SpellingService
from tidings.errors import InvalidRequest
from tidings.gateways.speller import Speller


@pytest.fixture
def service() -> Iterator[SpellingService]:
    with SpellingService() as running:
        yield running


def test_numbers_are_spelled_in_the_language_asked_for(service: SpellingService) -> None:
    notes: list[str] = []
    assert Speller(service.url, "en", notes.append).spell("3 ships & 4 ¿boats?") == "three ships & four ¿boats?"
    assert Speller(service.url + "?style=short", "es", notes.append).spell("3") == "three"
    assert service.asked == [("3 ships & 4 ¿boats?", "en"), ("3", "es")]
    assert notes == []


def test_a_text_without_numbers_is_not_sent(service: SpellingService) -> None:
    assert Speller(service.url, "en", print).spell("no number") == "no number"
    assert service.asked == []


def test_an_outage_is_told_once_and_ends(service: SpellingService) -> None:
    notes: list[str] = []
    speller = Speller(service.url, "en", notes.append)
    for body in (b"not json", b"[]", b'{"text": 3}', b"\xff"):
        service.answer = body
        assert speller.spell("3") == "3"
    assert len(notes) == 1
    service.answer = None
    assert speller.spell("3") == "three"
    service.answer = json.dumps({}).encode()
    assert speller.spell("4") == "4"
    assert len(notes) == 2 and service.url in notes[1]


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    notes: list[str] = []
    assert Speller(f"http://127.0.0.1:{port}/spell", "en", notes.append).spell("3 ships") == "3 ships"
    assert len(notes) == 1 and "refused" in notes[0]


def test_only_the_web_is_asked() -> None:
    with pytest.raises(InvalidRequest, match="http://"):
        Speller("file:///etc/hostname", "en", print)
