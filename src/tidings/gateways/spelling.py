"""What the web service answers: a pure function from a request to an answer, and the description of both.

    GET  /spell?text=I+have+2+cats&lang=en      {"text": "I have two cats", "lang": "en"}
    POST /spell    {"text": ..., "lang": ...}   the same
    GET  /health                                {"status": "ok"}
    GET  /openapi.json                          all of this, for programs

Whatever cannot be answered is `{"error": "a sentence"}` with a status below 500. Sockets, times and connections are
the business of `tidings.gateways.http`.
"""

from __future__ import annotations

import dataclasses
import re
import urllib.parse
from collections.abc import Callable
from typing import Any

import msgspec

from tidings.errors import InvalidRequest
from tidings.spelling import LANGUAGES, spell
from tidings.spelling.languages import language

TEXT_CHARACTERS_MAX = 65_536
BODY_BYTES_MAX = 1024 * 1024
"""Room for the longest text with every character escaped, which takes twelve bytes for each."""
FIELDS_MAX = 16


class SpellRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a POST."""

    text: str
    lang: str = "en"


@dataclasses.dataclass(frozen=True)
class Answer:
    """What goes back to the client."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def answer(method: str, target: str, content_type: str, body: bytes) -> Answer:
    """The answer to a request.

    >>> answer("GET", "/spell?text=2+gatos&lang=es", "", b"").body.decode()
    '{"text":"dos gatos","lang":"es"}'
    >>> answer("GET", "/nowhere", "", b"").status
    404
    """
    # A client that takes us for a proxy sends the whole address.
    path, _, query = re.sub(r"^https?://[^/?]*", "", target).partition("?")
    methods = ROUTES.get(path)
    if methods is None:
        return refusal(404, f"There is nothing at this path: there are {', '.join(ROUTES)}.")
    handler = methods.get("GET" if method == "HEAD" else method)
    if handler is None:
        allowed = ", ".join([*methods, *(["HEAD"] if "GET" in methods else [])])
        return refusal(405, f"{path} answers {allowed} only.", ("allow", allowed))
    return handler(query, content_type, body)


def refusal(status: int, sentence: str, *headers: tuple[str, str]) -> Answer:
    """An answer that says what was wrong."""
    return Answer(status, msgspec.json.encode({"error": sentence}), headers)


def _get_spell(query: str, _content_type: str, _body: bytes) -> Answer:
    try:
        fields = urllib.parse.parse_qsl(
            query, keep_blank_values=True, strict_parsing=bool(query), errors="strict", max_num_fields=FIELDS_MAX
        )
    except ValueError:  # Bytes that are not UTF-8 among them.
        return refusal(400, "The query cannot be read: give ?text=...&lang=..., percent-encoded UTF-8.")
    names = [name for name, _ in fields]
    if len(set(names)) < len(names) or not {"text"} <= set(names) <= {"text", "lang"}:
        return refusal(400, "The query must give text once, may give lang once, and nothing else.")
    return _spell(SpellRequest(**dict(fields)))


def _post_spell(_query: str, content_type: str, body: bytes) -> Answer:
    if content_type.partition(";")[0].strip().lower() != "application/json":
        return refusal(415, "The body must be JSON: send it with Content-Type: application/json.")
    try:
        return _spell(msgspec.json.decode(body, type=SpellRequest))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return refusal(400, f'The body is not {{"text": ..., "lang": ...}}: {error}.')


def _spell(request: SpellRequest) -> Answer:
    if len(request.text) > TEXT_CHARACTERS_MAX:
        return refusal(413, f"The text is too long: {TEXT_CHARACTERS_MAX} characters are the limit. Send it in parts.")
    try:
        lang = language(request.lang).name
    except InvalidRequest as error:
        return refusal(422, str(error))
    return Answer(200, msgspec.json.encode({"text": spell(request.text, lang), "lang": lang}))


def _get_health(_query: str, _content_type: str, _body: bytes) -> Answer:
    return Answer(200, b'{"status":"ok"}')


def _get_description(_query: str, _content_type: str, _body: bytes) -> Answer:
    return Answer(200, msgspec.json.encode(DESCRIPTION))


Handler = Callable[[str, str, bytes], Answer]
ROUTES: dict[str, dict[str, Handler]] = {
    "/spell": {"GET": _get_spell, "POST": _post_spell},
    "/health": {"GET": _get_health},
    "/openapi.json": {"GET": _get_description},
}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


TEXT = {"type": "string", "maxLength": TEXT_CHARACTERS_MAX}
LANG = {"type": "string", "enum": list(LANGUAGES), "default": "en"}
REFUSALS = {
    "400": "The request cannot be read.",
    "408": "The request took too long to arrive.",
    "413": "The text or the body is too long.",
    "415": "The body is not declared as JSON.",
    "422": "There is no such language.",
    "429": "There are too many connections: try again.",
    "431": "The address and the headers are too long: use POST.",
}


def _responses(schema: dict[str, Any], *, but: tuple[str, ...] = ()) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": _json(schema)}}
    for status, description in REFUSALS.items():
        if status not in but:
            responses[status] = {"description": description, "content": _json({"$ref": "#/components/schemas/Refusal"})}
    return responses


SPELLED = {"$ref": "#/components/schemas/Spelled"}
NO_ARGUMENTS = ("413", "415", "422")
DESCRIPTION: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "tidings: numbers into words", "version": "1.0.0", "license": {"name": "Apache-2.0"}},
    "paths": {
        "/spell": {
            "get": {
                "operationId": "spell",
                "summary": "A text with its numbers in words",
                "parameters": [
                    {"name": "text", "in": "query", "required": True, "schema": TEXT},
                    {"name": "lang", "in": "query", "required": False, "schema": LANG},
                ],
                "responses": _responses(SPELLED, but=("415",)),
            },
            "post": {
                "operationId": "spellLongText",
                "summary": "The same for texts that are too long for an address",
                "requestBody": {"required": True, "content": _json({"$ref": "#/components/schemas/Text"})},
                "responses": _responses(SPELLED),
            },
        },
        "/health": {
            "get": {
                "operationId": "health",
                "summary": "Whether the service answers",
                "responses": _responses(
                    {
                        "type": "object",
                        "properties": {"status": {"const": "ok"}},
                        "required": ["status"],
                        "additionalProperties": False,
                    },
                    but=NO_ARGUMENTS,
                ),
            }
        },
        "/openapi.json": {
            "get": {
                "operationId": "describe",
                "summary": "This description",
                "responses": _responses({"type": "object", "required": ["openapi", "paths"]}, but=NO_ARGUMENTS),
            }
        },
    },
    "components": {
        "schemas": {
            "Text": {
                "type": "object",
                "properties": {"text": TEXT, "lang": LANG},
                "required": ["text"],
                "additionalProperties": False,
            },
            "Spelled": {
                "type": "object",
                "properties": {"text": {"type": "string"}, "lang": {"type": "string", "enum": list(LANGUAGES)}},
                "required": ["text", "lang"],
                "additionalProperties": False,
            },
            "Refusal": {
                "type": "object",
                "properties": {"error": {"type": "string", "minLength": 1}},
                "required": ["error"],
                "additionalProperties": False,
            },
        }
    },
}
