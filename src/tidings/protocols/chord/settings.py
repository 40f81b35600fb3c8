"""The settings of Chord, with the papers' symbols."""

from __future__ import annotations

import msgspec

from tidings.errors import InvalidRequest


class ChordSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a node keeps its place in the ring. All nodes of a ring share `successors_max`."""

    successors_max: int = 8
    """The length of the successor list (r). A ring needs r + 1 founding members, and so many neighbours may die at
    once less one.
    """
    stabilise_ms: int = 500
    """How often the successor is asked for news."""
    fix_fingers_ms: int = 500
    """How often one finger is looked up again."""
    query_ms: int = 500
    """How long an answer is waited for; at least the longest round trip."""
    query_tries: int = 3
    """Questions without an answer before a peer is taken for dead."""
    hop_ms: int = 500
    """How long the next node of a route may take to confirm."""
    hop_tries: int = 2
    """Attempts with one node before the next best is taken."""
    hops_max: int = 256
    """A message that has come this far is going in circles and is dropped."""
    lookup_ms: int = 5_000
    lookup_tries: int = 4
    """Attempts of FIND-ROOT before `RootUnknown`."""
    join_ms: int = 3_000
    """How long a joiner waits before it asks the next contact."""
    pending_max: int = 10_000
    """Hops, and lookups, that are waited for at once. A hop beyond is sent without waiting; a lookup beyond fails at
    once.
    """
    payload_bytes_max: int = 1024 * 1024 + 4096

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise InvalidRequest(f"The Chord setting {name} is {getattr(self, name)}: it must be at least 1.")
        if self.successors_max < 2:
            raise InvalidRequest(
                "The Chord setting successors_max must be at least 2: with 1 the first failure breaks a ring."
            )
