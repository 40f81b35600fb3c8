"""What a gossiping node remembers: which messages it has seen, and the latest of them in full.

Messages are named by topic and offset, and the offsets of a topic are counted by their publisher. So what
was seen is one number for each topic, plus the few offsets that came ahead of a gap; it does not grow with the number
of messages. A message that is too far ahead of a gap is not taken at all: it will be asked for once the gap is closed.
"""

from __future__ import annotations

from tidings.settings import GossipSettings


class Track:
    """The offsets of one topic that were seen: all below `next_offset`, and those in `ahead`."""

    __slots__ = ("ahead", "high_offset", "next_offset")

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.high_offset = next_offset
        """One more than the highest offset that was seen."""
        self.ahead: dict[int, None] = {}

    def __contains__(self, offset: int) -> bool:
        return offset < self.next_offset or offset in self.ahead

    def add(self, offset: int) -> None:
        if offset == self.next_offset and not self.ahead:  # In order, as nearly always.
            self.next_offset = self.high_offset = offset + 1
            return
        self.ahead[offset] = None
        self.high_offset = max(self.high_offset, offset + 1)
        self._close()

    def skip(self, below_offset: int) -> None:
        """Nothing below is waited for any more."""
        if below_offset > self.next_offset:
            self.ahead = {offset: None for offset in self.ahead if offset >= below_offset}
            self.next_offset = below_offset
            self.high_offset = max(self.high_offset, below_offset)
            self._close()

    def missing(self, high_offset: int, count_max: int) -> list[int]:
        """The first offsets below `high_offset` that were not seen."""
        found: list[int] = []
        for offset in range(self.next_offset, high_offset):
            if len(found) == count_max:
                break
            if offset not in self.ahead:
                found.append(offset)
        return found

    def count_missing(self, high_offset: int) -> int:
        """How many offsets below `high_offset` were not seen."""
        seen_ahead = sum(offset < high_offset for offset in self.ahead)
        return max(high_offset - self.next_offset - seen_ahead, 0)

    def _close(self) -> None:
        while self.next_offset in self.ahead:
            del self.ahead[self.next_offset]
            self.next_offset += 1


class Memory:
    """The tracks of all topics, and the latest messages.

    >>> memory = Memory(GossipSettings())
    >>> memory.track("news", begin_offset=0)
    True
    >>> memory.add("news", 0, hops=3, body=b"hello")
    >>> memory.has_seen("news", 0), memory.has_seen("news", 1), memory.kept("news", 0)
    (True, False, (3, b'hello'))
    """

    __slots__ = ("_kept", "_kept_bytes", "_settings", "tracks")

    def __init__(self, settings: GossipSettings) -> None:
        self._settings = settings
        self.tracks: dict[str, Track] = {}
        self._kept: dict[tuple[str, int], tuple[int, bytes]] = {}
        self._kept_bytes = 0

    @property
    def kept_count(self) -> int:
        return len(self._kept)

    def track(self, topic: str, begin_offset: int) -> bool:
        """Begins to follow a topic, unless it is followed; False if there are too many."""
        if topic not in self.tracks:
            if len(self.tracks) >= self._settings.topics_max:
                return False
            self.tracks[topic] = Track(begin_offset)
        return True

    def has_seen(self, topic: str, offset: int) -> bool:
        track = self.tracks.get(topic)
        # Spelled out, as nearly every message asks: `offset in track` would cost one more call.
        return track is not None and (offset < track.next_offset or offset in track.ahead)

    def has_room(self, topic: str, offset: int) -> bool:
        """Whether an offset is near enough to what is waited for."""
        return offset < self.tracks[topic].next_offset + self._settings.window

    def add(self, topic: str, offset: int, hops: int, body: bytes) -> None:
        """A message was seen, so many hops from where it was published; it is kept until newer ones need the room."""
        self.tracks[topic].add(offset)
        self._kept[topic, offset] = (hops, body)
        self._kept_bytes += len(body)
        while len(self._kept) > self._settings.kept_max or self._kept_bytes > self._settings.kept_bytes_max:
            _, oldest = self._kept.pop(next(iter(self._kept)))
            self._kept_bytes -= len(oldest)

    def kept(self, topic: str, offset: int) -> tuple[int, bytes] | None:
        """The hops and the body of a message that is still kept."""
        return self._kept.get((topic, offset))

    def digest(self) -> tuple[tuple[str, int, int], ...]:
        """For each topic: below which offset everything was seen, and above which nothing was."""
        return tuple([(topic, track.next_offset, track.high_offset) for topic, track in self.tracks.items()])
