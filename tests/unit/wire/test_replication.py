"""Messages between replicas as bytes: what is not one is refused (P6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.errors import ProtocolError
from tidings.protocols.multipaxos.messages import (
    Accept,
    Accepted,
    AnyMessage,
    Canvass,
    Chosen,
    Fetch,
    FetchPart,
    Part,
    Prepare,
    Promise,
    Refused,
    Support,
)
from tidings.protocols.multipaxos.values import CHOSEN, Add, Ballot, Command, Entry, Noop, Promote, Remove
from tidings.wire import replication
from tidings.wire.replication import decode_message, encode_message

BALLOT = Ballot(3, 2)
VALUES = (Noop(), Command("ann", 1, b"x"), Add(4), Promote(4), Remove(1))
MESSAGES = [
    Canvass(4, 7),
    Support(4),
    Prepare(BALLOT, 7),
    Promise(BALLOT, (Entry(7, CHOSEN, VALUES[1]),), 7),
    Accept(BALLOT, 7, VALUES, 6, 9),
    Accepted(BALLOT, 7, 5, 6, 9),
    Refused(BALLOT, 6),
    Fetch(3),
    Chosen(3, VALUES, 9),
    FetchPart(9, 100, 3),
    Part(9, 100, 200, b"y" * 100),
]


@pytest.mark.parametrize("message", MESSAGES)
def test_every_message_comes_back(message: AnyMessage) -> None:
    assert decode_message(encode_message(message)) == message


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data: bytes) -> None:
    try:
        message = decode_message(data)
    except ProtocolError:
        return
    assert decode_message(encode_message(message)) == message


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_cut_short_is_refused(message: AnyMessage) -> None:
    with pytest.raises(ProtocolError):
        decode_message(encode_message(message)[:-1])


def test_a_message_beyond_the_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "MESSAGE_BYTES_MAX", 10)
    with pytest.raises(ProtocolError, match="batch_bytes_max"):
        decode_message(bytes(11))
