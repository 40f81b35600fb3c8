"""Every exception that tidings raises, in one tree.

    TidingsError
    ├── LocalError                 the caller asked for something that cannot be done
    │   ├── NoSuchTopic       1    the topic does not exist
    │   ├── NotSubscribed     2    the client has no such subscription
    │   ├── InvalidTopic      3    a topic name that is empty, too long or has control characters
    │   ├── MessageTooLarge   4    a message or batch above the limit
    │   ├── Fenced            5    a newer session of the same name has taken over
    │   ├── OutOfSequence     6    a publisher's sequence number left a gap
    │   ├── LimitReached      7    a bound from the settings was met
    │   ├── Unauthorized      8    this client may not do that
    │   └── InvalidRequest    9    an argument or a request field that makes no sense
    ├── RemoteError                the other side, or the way to it
    │   ├── Unavailable      10    no answer after every try
    │   ├── Overloaded       11    refused for now, with nothing stored: try again later
    │   ├── ProtocolError    12    bytes that are not the protocol
    │   └── Moved            14    another group of the ring owns that; nodes sort it out among themselves
    └── StorageError
        └── StorageDamaged   13    a file that fails its checks

The number is the error's name on the wire and never changes its meaning. Every text says what was
wrong and what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class TidingsError(Exception):
    """The root of every error that tidings raises on purpose."""

    number = 0
    receipts: Any = None
    """Of a `put_many`: the `Receipts` of what had been stored when it failed."""


class LocalError(TidingsError):
    """The caller's fault: the same call will fail again until something is changed."""


class RemoteError(TidingsError):
    """The other side's fault, or the network's."""


class StorageError(TidingsError):
    """The disk's fault."""


class NoSuchTopic(LocalError):
    number = 1


class NotSubscribed(LocalError):
    number = 2


class InvalidTopic(LocalError):
    number = 3


class MessageTooLarge(LocalError):
    number = 4


class Fenced(LocalError):
    number = 5


class OutOfSequence(LocalError):
    number = 6


class LimitReached(LocalError):
    number = 7


class Unauthorized(LocalError):
    number = 8


class InvalidRequest(LocalError, ValueError):
    number = 9


class Unavailable(RemoteError):
    number = 10

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.resend: Callable[[], Any] = _nothing_to_resend
        """Sends a put, a put_many or a transaction once more as it was, and returns the same (of an `AsyncBus`:
        to be awaited). Of any other call it is InvalidRequest: make the call again."""


class Overloaded(RemoteError):
    number = 11


class ProtocolError(RemoteError):
    number = 12


class StorageDamaged(StorageError):
    number = 13


class Moved(RemoteError):
    number = 14


NUMBERED: dict[int, type[TidingsError]] = {
    kind.number: kind
    for kind in (
        NoSuchTopic,
        NotSubscribed,
        InvalidTopic,
        MessageTooLarge,
        Fenced,
        OutOfSequence,
        LimitReached,
        Unauthorized,
        InvalidRequest,
        Unavailable,
        Overloaded,
        ProtocolError,
        StorageDamaged,
        Moved,
    )
}


def _nothing_to_resend() -> Any:
    raise InvalidRequest("The call that failed has put nothing that could be sent again: make the call once more.")


def from_number(number: int, text: str) -> TidingsError:
    """The error that a number on the wire stands for; an unknown number keeps its text.

    >>> from_number(1, "There is no topic 'news'.")
    NoSuchTopic("There is no topic 'news'.")
    """
    return NUMBERED.get(number, TidingsError)(text)
