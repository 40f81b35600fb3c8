"""The socket protocol byte by byte: whatever the pieces it comes in, whatever the nonsense. E1, E3."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.errors import InvalidRequest
from tidings.gateways import fields
from tidings.gateways.fields import FieldReader, Malformed, Publish, Request, RequestReader, Subscribe, Unsubscribe

LONG_TOPIC = "ñ" * 128
LONG_TEXT = "𝄞" * 1024


def read(*pieces: bytes) -> Request | None:
    """The request in these pieces, None when it is not complete."""
    reader = RequestReader()
    for piece in pieces:
        if reader.feed(piece):
            return fields.parse(reader.fields)
    return None


@pytest.mark.parametrize(
    ("data", "request_"),
    [
        (b"PUBLISH\0news\0hello\0", Publish("news", "hello")),
        (b"PUBLISH\0news\0\0", Publish("news", "")),
        (b"SUBSCRIBE\0news\x004201\0", Subscribe("news", 4201)),
        (b"UNSUBSCRIBE\0news\0001\0", Unsubscribe("news", 1)),
        (fields.encode("PUBLISH", LONG_TOPIC, LONG_TEXT), Publish(LONG_TOPIC, LONG_TEXT)),
        (fields.encode("SUBSCRIBE", LONG_TOPIC, 65535), Subscribe(LONG_TOPIC, 65535)),
    ],
)
def test_requests(data: bytes, request_: Request) -> None:
    """E1, E3: the longest topics and texts count in characters, not in bytes."""
    assert read(data) == request_
    assert read(data + b"and more") == request_
    assert read(*(data[i : i + 1] for i in range(len(data)))) == request_
    assert read(data[:-1]) is None


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"GET / HTTP/1.1\r\n", None),
        (b"publish\0news\0x\0", None),
        (b"PUBLISHED", None),
        (b"\0\0\0", None),
        (b"P\0news\0x\0", None),
        (b"x" * 100_000, None),
        (b"PUBLISH\0\0x\0", 1),
        (b"PUBLISH\0ne\nws\0x\0", 1),
        (b"PUBLISH\0\xff\xfe\0x\0", 1),
        (b"PUBLISH\0news\0\xff\0", 1),
        (fields.encode("PUBLISH", "n" * 129, "x"), 1),
        (fields.encode("PUBLISH", "news", "x" * 1025), 1),
        (b"PUBLISH\0" + b"n" * 513, 1),
        (b"PUBLISH\0news\0" + b"x" * 4097, 1),
        (fields.encode("SUBSCRIBE", "n" * 129, 4201), 1),
        (fields.encode("SUBSCRIBE", "news", 0), 1),
        (fields.encode("SUBSCRIBE", "news", 65536), 1),
        (fields.encode("SUBSCRIBE", "news", "-1"), 1),
        (fields.encode("SUBSCRIBE", "news", "٤٢"), 1),
        (fields.encode("UNSUBSCRIBE", "n" * 129, 4201), 2),
        (fields.encode("UNSUBSCRIBE", "news", "port"), 2),
    ],
)
def test_nonsense_is_refused_with_the_answer_of_its_operation(data: bytes, answer: int | None) -> None:
    with pytest.raises(Malformed) as caught:
        read(data)
    assert caught.value.answer == answer


def test_nonsense_is_noticed_as_soon_as_it_can_be() -> None:
    """A sender of garbage is not listened to for longer than needed."""
    reader = RequestReader()
    assert not reader.feed(b"SUB")
    with pytest.raises(Malformed, match="no operation"):
        reader.feed(b"J")


@settings(deadline=None)
@given(st.lists(st.binary(max_size=6000), max_size=20))
def test_any_bytes_are_a_request_or_malformed_and_little_is_kept(pieces: list[bytes]) -> None:
    reader = RequestReader()
    try:
        for piece in pieces:
            if reader.feed(piece):
                fields.parse(reader.fields)
                return
            assert sum(map(len, reader.fields)) + len(reader._open) <= fields.REQUEST_BYTES_MAX
    except Malformed:
        pass


@settings(deadline=None)
@given(
    st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=128),
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=1024),
    st.lists(st.integers(0, 6000), max_size=8),
)
def test_what_was_encoded_is_read_however_it_is_cut(topic: str, text: str, cuts: list[int]) -> None:
    """E1: a topic that the bus takes and a text within the limit come through as they are."""
    data = fields.encode("PUBLISH", topic, text)
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    assert read(*(data[start:end] for start, end in pairwise(edges))) == Publish(topic, text)


def test_a_delivery_is_two_fields() -> None:
    reader = FieldReader((512, 4096))
    assert not reader.feed(b"news\0hel")
    assert reader.feed(b"lo\0")
    assert reader.fields == [b"news", b"hello"]
    with pytest.raises(Malformed):
        FieldReader((4, 4)).feed(b"longer")


@pytest.mark.parametrize("text", ["x" * 1025, "a\0b", "a\udcffb"])
def test_texts_that_the_protocol_cannot_carry(text: str) -> None:
    with pytest.raises(InvalidRequest):
        fields.check_text(text)
