"""E6: what the web service answers, without a socket."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from tidings.gateways.spelling import BODY_BYTES_MAX, DESCRIPTION, REFUSALS, ROUTES, TEXT_CHARACTERS_MAX, answer
from tidings.spelling import LANGUAGES

JSON = "application/json"


def get(target: str, method: str = "GET") -> tuple[int, Any]:
    reply = answer(method, target, "", b"")
    return reply.status, json.loads(reply.body)


def post(body: Any, content_type: str = JSON) -> tuple[int, Any]:
    reply = answer("POST", "/spell", content_type, body if isinstance(body, bytes) else json.dumps(body).encode())
    return reply.status, json.loads(reply.body)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_both_methods_spell_in_every_language(lang: str) -> None:
    expected = {"en": "seven", "es": "siete", "pt": "sete", "pt-BR": "sete"}[lang]
    assert get(f"/spell?text=7&lang={lang}") == (200, {"text": expected, "lang": lang})
    assert post({"text": "7", "lang": lang}) == (200, {"text": expected, "lang": lang})


def test_english_is_the_default_and_empty_is_a_text() -> None:
    assert get("/spell?text=2+cats") == (200, {"text": "two cats", "lang": "en"})
    assert get("/spell?text=") == (200, {"text": "", "lang": "en"})
    assert post({"text": ""}) == (200, {"text": "", "lang": "en"})
    assert get("http://127.0.0.1:7480/spell?text=2") == (200, {"text": "two", "lang": "en"})


def test_text_is_utf_8_in_a_query_and_anything_json_can_say_in_a_body() -> None:
    assert get(f"/spell?text={quote('1ª edição 😀')}&lang=pt")[1]["text"] == "primeira edição 😀"
    assert post(b'{"text": "2 \\ud83d\\ude00 \\u0000"}')[1]["text"] == "two 😀 \0"
    assert post({"text": "2"}, "Application/JSON; charset=utf-8")[0] == 200


@pytest.mark.parametrize(
    "query",
    ["", "?", "?lang=en", "?text=1&text=2", "?text=1&more=2", "?text", "?text=%ff", "?" + "&".join(["text=1"] * 99)],
)
def test_a_query_that_makes_no_sense_is_400(query: str) -> None:
    status, body = get(f"/spell{query}")
    assert status == 400
    assert "text" in body["error"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"text": 1}',
        b'{"text": null}',
        b'{"text": "1", "lang": 5}',
        b'{"text": "1", "more": ""}',
        b'{"text": "\xff"}',
        b'{"text": "\\ud800"}',
        b'{"text": "1"} {}',
        b"[" * 100_000,
        b'{"text":' * 50_000,
    ],
)
def test_a_body_that_makes_no_sense_is_400(body: bytes) -> None:
    status, reply = post(body)
    assert status == 400
    assert reply["error"]


def test_a_body_that_is_not_declared_as_json_is_415() -> None:
    """A page in a browser can send a form to loopback unasked, but not JSON."""
    for content_type in ("", "text/plain", "application/x-www-form-urlencoded", "application/jsonx"):
        assert post({"text": "1"}, content_type)[0] == 415


@pytest.mark.parametrize("lang", ["xx", "", "EN", "pt_BR", "en-US", "e" * 1000])
def test_an_unknown_language_is_422_and_names_the_known_ones(lang: str) -> None:
    for status, body in (get(f"/spell?text=1&lang={lang}"), post({"text": "1", "lang": lang})):
        assert status == 422
        assert "en, es, pt, pt-BR" in body["error"]
        assert len(body["error"]) < 150


def test_a_text_at_the_limit_is_spelled_and_one_above_is_413() -> None:
    assert post({"text": "x" * TEXT_CHARACTERS_MAX})[0] == 200
    status, body = post({"text": "x" * (TEXT_CHARACTERS_MAX + 1)})
    assert (status, "65536 characters" in body["error"]) == (413, True)


def test_the_longest_text_fits_into_a_body_however_it_is_escaped() -> None:
    assert len(json.dumps({"text": "😀" * TEXT_CHARACTERS_MAX, "lang": "pt-BR"})) <= BODY_BYTES_MAX


def test_other_paths_and_methods() -> None:
    assert get("/")[0] == get("/spell/")[0] == get("/Spell")[0] == get("*")[0] == get("")[0] == 404
    for path, methods in ROUTES.items():
        for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            reply = answer(method, path, "", b"")
            assert (reply.status == 405) == (method not in methods)
            if reply.status == 405:
                assert dict(reply.headers)["allow"].split(", ") == [*methods, "HEAD"]
    assert get("/health") == (200, {"status": "ok"})
    assert answer("HEAD", "/health", "", b"").status == 200


def test_the_description_tells_of_every_path_method_status_and_language() -> None:
    assert get("/openapi.json") == (200, DESCRIPTION)
    described = {path: {method.upper() for method in methods} for path, methods in DESCRIPTION["paths"].items()}
    assert described == {path: set(methods) for path, methods in ROUTES.items()}
    assert set(DESCRIPTION["paths"]["/spell"]["post"]["responses"]) == {"200", *REFUSALS}
    assert DESCRIPTION["components"]["schemas"]["Text"]["properties"]["lang"]["enum"] == list(LANGUAGES)
