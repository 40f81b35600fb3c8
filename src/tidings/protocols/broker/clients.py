"""Who publishes and consumes: names, their epochs, and which sequence numbers each topic has taken.

A name's newest session holds the current epoch; whatever an older one still says is refused. For each topic
that a name has published to, a `Track` remembers every sequence number ever taken and where its message
went, as runs in which both advance together: a lone publisher needs one run for ever.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable

import msgspec

from tidings.errors import Fenced
from tidings.protocols.fields import NOTED_MAX


class TrackIndex(msgspec.Struct, frozen=True, array_like=True):
    """The runs that a track gained while one journal segment was written."""

    client: str
    topic: str
    sequences: bytes
    offsets: bytes
    counts: bytes


class Track:
    """The sequence numbers of one publisher that one topic has taken, 1 to `last`."""

    __slots__ = ("counts", "last", "offsets", "sealed_count", "sequences")

    def __init__(self, last: int = 0) -> None:
        self.last = last
        self.sequences = array("Q")
        self.offsets = array("Q")
        self.counts = array("Q")
        """How many numbers each run has; between two runs there may be numbers whose messages are gone."""
        self.sealed_count = 0

    def take(self, sequence: int, offset: int, count: int) -> None:
        """`count` messages from `sequence` on lie at `offset` and behind it.

        The first one after a seal begins a run of its own, so that the piece of each segment says where the
        messages in it are, also when the pieces before it are gone.
        """
        sequences, offsets, counts = self.sequences, self.offsets, self.counts
        if (
            len(sequences) == self.sealed_count
            or offset != offsets[-1] + counts[-1]
            or sequence != sequences[-1] + counts[-1]
        ):
            sequences.append(sequence)
            offsets.append(offset)
            counts.append(count)
        else:
            counts[-1] += count
        last = sequence + count - 1
        if last > self.last:
            self.last = last

    def find(self, sequence: int, first_offset: int = 0) -> int | None:
        """The offset of the message that had this number, None when it is below `first_offset`, what is kept."""
        assert 0 < sequence <= self.last
        run = bisect_right(self.sequences, sequence) - 1
        index = sequence - self.sequences[run] if run >= 0 else 0
        if run < 0 or index >= self.counts[run] or self.offsets[run] + index < first_offset:
            return None
        return self.offsets[run] + index

    def trim(self, first_offset: int) -> None:
        """Forgets the places (never the numbers) of messages below `first_offset`."""
        count = 0
        while count < len(self.offsets) and self.offsets[count] + self.counts[count] <= first_offset:
            count += 1
        if count:
            del self.sequences[:count], self.offsets[:count], self.counts[:count]
            self.sealed_count = max(0, self.sealed_count - count)

    def seal_again(self) -> None:
        """Old messages have been carried into this segment, so its piece has to say where all of them are."""
        self.sealed_count = 0

    def load(self, piece: TrackIndex) -> None:
        """Adds a piece that `Client.seal` made; what it says again replaces what was said before."""
        [first] = array("Q", piece.sequences[:8])
        count = bisect_left(self.sequences, first)
        del self.sequences[count:], self.offsets[count:], self.counts[count:]
        self.sequences.frombytes(piece.sequences)
        self.offsets.frombytes(piece.offsets)
        self.counts.frombytes(piece.counts)
        self.sealed_count = len(self.sequences)


PAST_TOKENS_MAX = 16
"""Sessions of a name whose tokens are remembered, so that a late Hello of one of them does not come back to life."""


class Client:
    """A name with its current epoch. The token tells a repeated Hello from a new session's."""

    __slots__ = ("anonymous", "epoch", "is_noted", "name", "noted", "past_tokens", "token", "tracks")

    def __init__(self, name: str, token: bytes, anonymous: bool, epoch: int = 1) -> None:
        self.name = name
        self.token = token
        self.anonymous = anonymous
        self.epoch = epoch
        self.past_tokens: deque[bytes] = deque(maxlen=PAST_TOKENS_MAX)
        self.tracks: dict[str, Track] = {}
        self.noted: tuple[bytes, ...] | None = ()
        """At the home of the name: the groups that are told of a new epoch; None if that has to be all of them."""
        self.is_noted = False
        """At any other group: whether the home has noted it, so that it is told."""

    def note(self, groups: Iterable[bytes] | None) -> None:
        """These groups are told of new epochs too; all are, if it is not known which or they are too many."""
        if groups is not None and self.noted is not None:
            noted = tuple(dict.fromkeys((*self.noted, *groups)))
            self.noted = noted if len(noted) <= NOTED_MAX else None
        else:
            self.noted = None

    def begin_session(self, token: bytes) -> None:
        """A newer session takes over."""
        self.past_tokens.append(self.token)
        self.token = token
        self.epoch += 1

    def has_replaced(self, token: bytes, renews: int) -> bool:
        """Whether a Hello with this token is that of a session before this one."""
        return token in self.past_tokens or renews not in (0, self.epoch)

    def fenced(self) -> Fenced:
        """The error for a session that was replaced."""
        return Fenced(f"A newer session of {self.name!r} has taken over: let one process at a time use that name.")

    def seal(self) -> list[TrackIndex]:
        """The runs gained since the last seal, for each topic that gained one."""
        return [
            TrackIndex(
                self.name,
                topic,
                track.sequences[track.sealed_count :].tobytes(),
                track.offsets[track.sealed_count :].tobytes(),
                track.counts[track.sealed_count :].tobytes(),
            )
            for topic, track in self.tracks.items()
            if track.sealed_count < len(track.sequences)
        ]

    def mark_sealed(self) -> None:
        for track in self.tracks.values():
            track.sealed_count = len(track.sequences)
