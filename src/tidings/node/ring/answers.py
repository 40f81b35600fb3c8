"""Which answers a proxy looks at before they pass, by their tags, and which requests are its own."""

from __future__ import annotations

from tidings.protocols.broker import messages
from tidings.protocols.broker.messages import AnyRequest
from tidings.wire.codec import Frame

OWN = 1 << 62
"""Requests of our own have numbers from here on: their answers are for us."""

LOOKED_AT = frozenset(
    {
        b"welcome",
        b"elsewhere",
        b"error",
        b"beaten",
        b"farewell",
        b"topics",
        b"groups",
        b"subscriptions",
        b"subscribers",
        b"status",
        b"discarded",
    }
)
"""Kinds of answers that may be for us, by the tag that they begin with. All others pass unread."""

JOINED = frozenset({b"subscribed", b"unsubscribed", b"flowing", b"acked"})
"""Kinds of answers that may be those of a part of a subscription."""

ANSWERS_TO_PUTS = frozenset({b"stored", b"committed", b"acked", b"error"})
"""What a commit over several groups waits for: answers to puts, and whatever may be one."""


def tag_of(header: Frame) -> bytes:
    """The tag of an answer, without reading the rest.

    >>> from tidings.protocols.broker.messages import Empty
    >>> from tidings.wire import codec
    >>> tag_of(codec.encode(Empty(1, "news")))
    b'empty'
    """
    return bytes(header[2 : 2 + (header[1] & 0x1F)]) if len(header) > 2 else b""


def is_word_of_door(request: AnyRequest) -> bool:
    """Whether a door says on its own to a group that serves a client that the client is there, or goes.

    It is for anyone who serves it, and not only for the owner of the client's home.

    >>> is_word_of_door(messages.Bye(OWN + 1, "alice", 1)), is_word_of_door(messages.Bye(1, "alice", 1))
    (True, False)
    """
    return request.request >= OWN and isinstance(request, messages.Beat | messages.Bye)
