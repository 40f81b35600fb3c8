"""The widest values that a field of a message may have: no decoder lets anything wider in.

Settings are far narrower, and answer with an error that says what to do. These bounds keep numbers that no file
position, clock or column can hold, and names as long as a frame, away from the code that would use them. Byte strings
are bounded by their frames.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from msgspec import Meta

NUMBER_MAX = 2**62
"""Twice as much still fits into 64 bits with a sign: what is added to such a number cannot overflow a column."""
NAME_CHARACTERS_MAX = 1_024
SEVERAL_MAX = 65_536
TOKEN_BYTES_MAX = 256
NOTED_MAX = 64

T = TypeVar("T")

Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
"""An offset, a count, a size, a time, an epoch."""
RequestNumber = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""What an answer only repeats."""
Name = Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]
"""A topic, a client, a group, an address."""
Token = Annotated[bytes, Meta(max_length=TOKEN_BYTES_MAX)]
Several = Annotated[tuple[T, ...], Meta(max_length=SEVERAL_MAX)]
Noted = Annotated[tuple[Token, ...], Meta(max_length=NOTED_MAX)]
"""The groups of a ring that are told of a new session of a name."""
