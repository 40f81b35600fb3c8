"""What a broker has to know of a batch that it stores: that it can be read, how many messages it has, whose it is.

The messages themselves are of no interest to it, and to make them only to drop them again is a fifth of its work for
a bulk publisher. A batch of values of one size need not be unpacked for that (see `even`); any other is unpacked as a
reader would unpack it.
"""

from __future__ import annotations

from tidings.errors import InvalidRequest
from tidings.message import ID_LENGTH_MAX, TIME_US_MAX, Contents, check_size
from tidings.wire.codec import Frame, decode_columns
from tidings.wire.even import read_even

EVEN_BYTES_MIN = 8 * 1024
"""Smaller bodies are unpacked at once: 0.4 us for a single message, and as much again for a look at it before."""


def read_contents(body: Frame, message_bytes_max: int) -> Contents:
    """What the batch in a body frame holds; ProtocolError or MessageTooLarge if it may not be stored."""
    even = read_even(body) if len(body) >= EVEN_BYTES_MIN else None
    if even is not None:
        contents, times = Contents(even.publisher, even.count, even.value_bytes, even.ids), even.published_us
    else:
        columns = decode_columns(body)
        # Only a body above the limit can hold a message above it.
        largest = max(map(len, columns.values), default=0) if len(body) > message_bytes_max else 0
        contents, times = Contents(columns.publisher, len(columns.values), largest, columns.ids), columns.published_us
    _check_times(times)
    _check_ids(contents.ids)
    check_size(contents.largest_bytes, message_bytes_max)
    return contents


def _check_times(times: int | list[int]) -> None:
    """Raises for a time that no reader could show: it would fail on the message for as long as that is stored."""
    first, last = (times, times) if isinstance(times, int) else (min(times, default=0), max(times, default=0))
    if first < 0 or last > TIME_US_MAX:
        raise InvalidRequest(
            f"A message was published at {first if first < 0 else last} us: give microseconds since 1970, "
            "up to the year 9999."
        )


def _check_ids(ids: list[str | None] | None) -> None:
    """Raises for an id too long to be remembered."""
    longest = max((len(each) for each in ids if each is not None), default=0) if ids is not None else 0
    if longest > ID_LENGTH_MAX:
        raise InvalidRequest(f"A message's id has {longest} characters and may have {ID_LENGTH_MAX}: shorten it.")
