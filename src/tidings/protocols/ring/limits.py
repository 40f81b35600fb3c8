"""How much of a handoff goes into one message, and how long its ends wait for each other."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """The bounds of a handoff."""

    piece_bytes_max: int = 1024 * 1024
    """Bodies in one piece; a single batch may be larger."""
    facts_bytes_max: int = 1024 * 1024
    records_max: int = 1_000
    """Ids, or runs of a track, in one fact. All nodes have to agree on it: a place in the list of facts counts them."""
    have_max: int = 2_048
    """Topics that one question says something of."""
    rounds_max: int = 8
    """After so many rounds over all topics the source has to stop, however much is still coming."""
    remind_every_ms: int = 500
    ask_again_ms: int = 1_000
    give_up_ms: int = 30_000
    """A source that says nothing for so long, and has given nothing, is left alone."""
