"""Messages between replicas as frames: what is not one is refused (P6, P7)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.errors import ProtocolError
from tidings.protocols.multipaxos.claims import Claim, Extent
from tidings.protocols.multipaxos.joining import Found, JoiningMessage, Known, Meet, Member
from tidings.protocols.multipaxos.messages import (
    Accept,
    Accepted,
    AnyMessage,
    Chosen,
    Fetch,
    FetchFile,
    File,
    Offer,
    Piece,
    Prepare,
    PreVote,
    PreVoteGranted,
    Promise,
    Recall,
    Refused,
    Remembered,
)
from tidings.protocols.multipaxos.values import CHOSEN, Add, Ballot, Command, Entry, Noop, Promote, Remove
from tidings.wire import replication
from tidings.wire.replication import INLINE_BYTES_MAX, MARK, Header, decode_message, encode_message

BALLOT = Ballot(3, 2)
VALUES = (Noop(), Command("ann", 1, b"x"), Add(4, "tcp://a:1", b"disk"), Promote(4), Remove(1, b"heir"))
ANN = Member(1, "tcp://a:1", b"disk")
LARGE = Command("bob", 2, b"y" * (INLINE_BYTES_MAX + 1))
LARGER = Command("bob", 3, b"z" * (INLINE_BYTES_MAX + 2))
SMALL = Command("bob", 4, b"s" * INLINE_BYTES_MAX)
MESSAGES = [
    PreVote(4, 7),
    PreVoteGranted(4),
    Prepare(BALLOT, 7),
    Promise(BALLOT, (Entry(7, CHOSEN, VALUES[1]),), 7),
    Accept(BALLOT, 7, VALUES, 6, 9),
    Accepted(BALLOT, 7, 5, 6, 9),
    Refused(BALLOT, 6),
    Fetch(3),
    Chosen(3, VALUES, 9),
    Offer(9, 77, (File("a.journal", 5), File("a.snapshot", 6))),
    FetchFile("a.journal", 100, 77),
    Piece("a.journal", 100, b"y" * 100),
    Recall(),
    Remembered(77, Extent(BALLOT, 9)),
    Meet("tcp://a:1", b"disk", ("tcp://a:1", "tcp://b:1")),
    Found(b"group", 2, (ANN,), (ANN,)),
    Known(("tcp://a:1",)),
]
WITH_LARGE = [
    Accept(BALLOT, 7, (Noop(), LARGE, SMALL, LARGER), 6, 9),
    Chosen(3, (LARGE,), 9),
    Promise(BALLOT, (Entry(7, BALLOT, SMALL), Entry(9, CHOSEN, LARGE)), 7),
]


@pytest.mark.parametrize("message", MESSAGES + WITH_LARGE)
def test_every_message_comes_back(message: AnyMessage | JoiningMessage) -> None:
    assert decode_message(encode_message(message, b"group", 3, 1)) == Header(b"group", 3, 1, message)


@pytest.mark.parametrize("message", [Fetch(3), WITH_LARGE[0]])
def test_a_claim_travels_with_its_message(message: AnyMessage) -> None:
    claim = Claim(77, Extent(BALLOT, 8), Extent(BALLOT, 9), 78)
    header = decode_message(encode_message(message, b"group", 3, 1, claim))
    assert header == Header(b"group", 3, 1, message, claim=claim)


def test_a_message_of_an_older_version_claims_nothing() -> None:
    mark, data = encode_message(Fetch(3), b"group", 3, 1)
    older = msgspec.msgpack.encode(msgspec.msgpack.decode(data)[:5])
    assert decode_message([mark, older]) == Header(b"group", 3, 1, Fetch(3))


@pytest.mark.parametrize("message", MESSAGES)
def test_small_bodies_travel_in_the_header(message: AnyMessage | JoiningMessage) -> None:
    assert len(encode_message(message)) == 2


def test_large_bodies_travel_apart_and_uncopied() -> None:
    frames = encode_message(WITH_LARGE[0])
    assert len(frames) == 4
    assert frames[2] is LARGE.body
    assert frames[3] is LARGER.body
    assert LARGE.body not in bytes(frames[1])
    assert SMALL.body in bytes(frames[1])


def test_the_body_is_the_frame_that_came() -> None:
    frames = encode_message(WITH_LARGE[1])
    message = decode_message([MARK, frames[1], memoryview(LARGE.body)]).message
    assert isinstance(message, Chosen)
    assert isinstance(message.values[0], Command)
    assert message.values[0].body == LARGE.body
    assert isinstance(message.values[0].body, memoryview)


def header(message: AnyMessage, *apart: int) -> bytes:
    return msgspec.msgpack.encode(Header(b"", 1, 2, message, apart))


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [MARK],
        [b"tidings replica 2", header(Fetch(3))],
        [header(Fetch(3)), MARK],
        [b"", header(Fetch(3))],
    ],
)
def test_other_marks_and_counts_of_frames_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError, match="are no message of a replica of this version"):
        decode_message(frames)


@pytest.mark.parametrize(
    "frames",
    [
        [MARK, header(Fetch(3)), b"body"],
        [MARK, header(Chosen(3, (SMALL,), 9)), b"body"],
        [MARK, header(Chosen(3, (SMALL,), 9), 0)],
        [MARK, header(Chosen(3, (SMALL, SMALL), 9), 0, 1), b"body"],
        [MARK, header(Chosen(3, (SMALL, SMALL), 9), 0), b"body", b"body"],
        [MARK, header(Chosen(3, (SMALL,), 9), 1), b"body"],
        [MARK, header(Chosen(3, (SMALL,), 9), -1), b"body"],
        [MARK, header(Fetch(3), 0), b"body"],
    ],
)
def test_other_bodies_than_the_header_says_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError, match=r"other bodies than it says|could not be read"):
        decode_message(frames)


@pytest.mark.parametrize("place", [place for place, value in enumerate(VALUES) if not isinstance(value, Command)])
def test_a_body_for_what_has_none_is_refused(place: int) -> None:
    with pytest.raises(ProtocolError, match="a body for what has none"):
        decode_message([MARK, header(Chosen(3, VALUES, 9), place), b"body"])


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_other_frames_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        decode_message(frames)


@given(st.binary(max_size=200), st.lists(st.binary(max_size=20), max_size=3))
def test_other_bytes_behind_the_mark_are_refused(data: bytes, bodies: list[bytes]) -> None:
    try:
        found = decode_message([MARK, data, *bodies])
    except ProtocolError:
        return
    assert (
        decode_message(encode_message(found.message, found.group, found.sender, found.receiver, found.claim)) == found
    )


@given(st.sampled_from(MESSAGES + WITH_LARGE), st.data())
def test_a_damaged_header_is_refused_or_is_another_message(message: AnyMessage, data: st.DataObject) -> None:
    frames = encode_message(message, b"group", 1, 2)
    damaged = bytearray(frames[1])
    place = data.draw(st.integers(0, len(damaged) - 1))
    damaged[place] ^= data.draw(st.integers(1, 255))
    try:
        found = decode_message([MARK, bytes(damaged), *frames[2:]])
    except ProtocolError:
        return
    assert (
        decode_message(encode_message(found.message, found.group, found.sender, found.receiver, found.claim)) == found
    )


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_cut_short_is_refused(message: AnyMessage | JoiningMessage) -> None:
    mark, data = encode_message(message)
    with pytest.raises(ProtocolError):
        decode_message([mark, data[:-1]])


@pytest.mark.parametrize("bodies", [0, 1])
def test_a_message_beyond_the_bound_is_refused(monkeypatch: pytest.MonkeyPatch, bodies: int) -> None:
    frames = encode_message(WITH_LARGE[1] if bodies else MESSAGES[4])
    monkeypatch.setattr(replication, "MESSAGE_BYTES_MAX", sum(map(len, frames)))
    decode_message(frames)
    monkeypatch.setattr(replication, "MESSAGE_BYTES_MAX", sum(map(len, frames)) - 1)
    with pytest.raises(ProtocolError, match="are no message of a replica"):
        decode_message(frames)
